"""Feature weights, the AC layer and the grouped experts against their peers."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ritornello.common.moe import Experts, MoELayer, RoutingState, SMoERouter
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.ac_router import ACRouter, adaptive_weights

# The paper's medium language model: 16 sequences of 512 tokens.
TOKENS, WIDTH, EXPERTS = 8192, 352, 16


def benchmarks() -> Iterator[Benchmark]:
    """Sizes of the paper's medium language model."""
    torch.manual_seed(0)
    tokens = torch.randn(TOKENS, WIDTH)
    previous = RoutingState(*(x.detach() for x in SMoERouter(WIDTH, EXPERTS)(tokens)[:3]))
    top1 = previous.indices[:, 0]
    yield Benchmark(
        f"feature weights n={TOKENS} d={WIDTH} E={EXPERTS}",
        ours=lambda: adaptive_weights(tokens, top1, EXPERTS)[top1],
        peer=lambda: _two_index_reduce(tokens, top1),
        peer_name="two index_reduce passes",
        target=2.0,
        agree=lambda a, b: torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4),
    )
    experts = Experts(EXPERTS, WIDTH, WIDTH)
    adaptive = MoELayer(experts, ACRouter(WIDTH, EXPERTS))
    plain = MoELayer(experts, SMoERouter(WIDTH, EXPERTS))
    yield Benchmark(
        "AC layer, forward and backward",
        ours=_step(lambda x: adaptive(x, previous)[0], tokens),
        peer=_step(lambda x: plain(x)[0], tokens),
        peer_name="the same layer with the plain gate",
        target=1 / 1.05,
        seconds=12.0,
    )
    yield _against_mixtral(tokens)


def _two_index_reduce(tokens: Tensor, top1: Tensor) -> Tensor:
    """The weights as two mean reductions over clusters, with the host sync for their number."""
    clusters = int(top1.max().item()) + 1
    zeros = torch.zeros(clusters, tokens.shape[1])
    mean = zeros.index_reduce(0, top1, tokens, "mean", include_self=False)
    spread = zeros.index_reduce(0, top1, (tokens - mean[top1]).abs(), "mean", include_self=False)
    weights = 1 / (spread + 1e-4)
    weights = weights.clamp(max=10 * weights.mean())
    return (weights / weights.mean(dim=0))[top1]


def _step(forward: Callable[[Tensor], Tensor], tokens: Tensor) -> Callable[[], Tensor]:
    def step() -> Tensor:
        inputs = tokens.clone().requires_grad_()
        forward(inputs).square().sum().backward()
        return inputs.grad

    return step


def _against_mixtral(tokens: Tensor) -> Benchmark:
    """Our layer with Mixtral's weights against its block with the loop over experts."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        experts_implementation="eager",
    )
    block = MixtralSparseMoeBlock(config)
    experts = Experts(EXPERTS, WIDTH, WIDTH, activation="swiglu", bias=False)
    layer = MoELayer(experts, SMoERouter(WIDTH, EXPERTS, bias=False))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=WIDTH**-0.5)
        layer.router.projection.weight.copy_(block.gate.weight)
        experts.weight_in.copy_(block.experts.gate_up_proj.transpose(1, 2))
        experts.weight_out.copy_(block.experts.down_proj.transpose(1, 2))
    return Benchmark(
        "grouped experts, forward and backward",
        ours=_step(lambda x: layer(x)[0], tokens),
        peer=_step(lambda x: block(x.unsqueeze(0))[0], tokens),
        peer_name="transformers' Mixtral block, loop over experts",
        target=1.0,
        agree=lambda a, b: torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3),
        seconds=12.0,
    )
