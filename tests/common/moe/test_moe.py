"""Routers and the grouped expert compute."""

import pytest
import torch

from ritornello.common.moe import (
    EmbeddingRouter,
    Experts,
    MoELayer,
    RoutingState,
    SMoERouter,
    SwitchTop1Router,
    XMoERouter,
    reference,
)
from ritornello.common.moe.experts import dispatch_order, within_capacity


def state_for(tokens: torch.Tensor, num_experts: int, top_k: int) -> RoutingState:
    return SMoERouter(tokens.shape[-1], num_experts, top_k)(tokens)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("tokens", [1, 7, 63])
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("bias", [True, False])
def test_grouped_experts_equal_the_loop_over_tokens(tokens, activation, bias):
    """Values and every gradient."""
    experts = Experts(5, 8, 12, activation=activation, bias=bias)
    x = torch.randn(tokens, 8, requires_grad=True)
    layer = MoELayer(experts, SMoERouter(8, 5, 2))
    state = layer.router(x)
    fast, slow = layer.apply_experts(x, state), reference.mixture(experts, x, state)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    target = torch.randn_like(fast)
    leaves = [x, *layer.parameters()]
    grads = [
        torch.autograd.grad((y * target).sum(), leaves, retain_graph=True, allow_unused=True)
        for y in (fast, slow)
    ]
    for ours, theirs in zip(*grads, strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_expert_without_tokens_and_an_empty_batch_are_no_special_case():
    layer = MoELayer(Experts(4, 6, 6), SMoERouter(6, 4, 1))
    layer.router.projection.bias.data = torch.tensor([100.0, 0, 0, 0])
    out, state = layer(torch.randn(5, 6))
    assert state.indices.eq(0).all()
    assert out.shape == (5, 6)
    out.sum().backward()
    assert layer.experts.weight_in.grad[1:].eq(0).all()
    for router in (layer.router, EmbeddingRouter(6, 4), XMoERouter(6, 4)):
        empty, _ = MoELayer(layer.experts, router)(torch.randn(0, 6))
        assert empty.shape == (0, 6)


def test_leading_dimensions_are_kept():
    layer = MoELayer(Experts(4, 6, 6), SMoERouter(6, 4, 2))
    x = torch.randn(2, 3, 6)
    out, state = layer(x)
    flat, _ = layer(x.view(6, 6))
    assert state.indices.shape == (2, 3, 2)
    torch.testing.assert_close(out.view(6, 6), flat)


def test_slots_are_sorted_by_expert_with_first_choices_first():
    indices = torch.tensor([[1, 0], [0, 1], [1, 2]])  # three tokens, two choices each
    dispatch = dispatch_order(indices, 3)
    assert dispatch.experts.tolist() == [0, 0, 1, 1, 1, 2]
    # slot = choice * 3 + token: expert 0 has token 1 (first choice), then token 0 (second)
    assert dispatch.order.tolist() == [1, 3, 0, 2, 4, 5]
    assert dispatch.offsets.tolist() == [2, 5, 6]


def test_capacity_drops_what_comes_last():
    indices = torch.tensor([[0], [0], [0], [1]])
    dispatch = dispatch_order(indices, 2)
    assert within_capacity(dispatch, 1.0).tolist() == [True, True, False, True]
    layer = MoELayer(Experts(2, 4, 4), SMoERouter(4, 2, 1), capacity_factor=1.0)
    layer.router.projection.bias.data = torch.tensor([100.0, 0.0])
    out, _ = layer(torch.randn(4, 4))
    assert out[2:].eq(0).all()
    assert out[:2].ne(0).any()


def test_scores_are_a_softmax_over_the_kept_logits():
    state = state_for(torch.randn(20, 6), 5, 3)
    kept = state.logits.gather(-1, state.indices)
    torch.testing.assert_close(state.scores, kept.softmax(-1))
    assert (kept[:, 0] >= kept[:, 1]).all()
    assert kept.amin(-1).ge(state.logits.sort(-1, descending=True).values[:, 2]).all()


def test_switch_scores_are_probabilities_over_all_experts():
    x = torch.randn(9, 6)
    state = SwitchTop1Router(6, 4)(x)
    probability, best = state.logits.softmax(-1).max(-1)
    torch.testing.assert_close(state.scores[:, 0], probability)
    assert torch.equal(state.indices[:, 0], best)


def test_embeddings_are_rescaled_in_place_and_logits_do_not_depend_on_it():
    router = EmbeddingRouter(6, 4)
    x = torch.randn(9, 6)
    first, second = router(x), router(x)
    torch.testing.assert_close(router.expert_embeddings.norm(dim=1), torch.full((4,), 1.5))
    torch.testing.assert_close(first.logits, second.logits)
    (first.logits.sum() + second.logits.sum()).backward()  # both graphs survive the rescaling


def test_logits_that_are_not_finite_become_the_smallest():
    router = EmbeddingRouter(3, 2, 1)
    x = torch.tensor([[1.0, 2.0, 3.0], [float("nan"), 0.0, 0.0]])
    logits = router(x).logits
    assert logits.isfinite().all()
    assert (logits[1] == logits[0].min()).all()


def test_autocast_runs_experts_in_half_precision_and_the_embedding_gate_in_full():
    layer = MoELayer(Experts(4, 16, 16), EmbeddingRouter(16, 4))
    x = torch.randn(10, 16)
    full, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        half, state = layer(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(state.logits, layer.router(x).logits)
    torch.testing.assert_close(half.float(), full, rtol=0.05, atol=0.05)


def test_bias_gradients_are_summed_in_full_precision_under_autocast():
    experts = Experts(2, 8, 8)
    tokens, gradient = torch.randn(2048, 8), torch.randn(2048, 8).bfloat16()
    state = RoutingState(torch.randint(2, (2048, 1)), torch.ones(2048, 1), torch.zeros(2048, 2))
    with torch.autocast("cpu", torch.bfloat16):
        out = MoELayer(experts, SMoERouter(8, 2, 1)).apply_experts(tokens, state)
    assert experts.bias_out is not None
    (ours,) = torch.autograd.grad(out, experts.bias_out, gradient.to(out.dtype))
    exact = torch.stack([gradient[state.indices[:, 0] == k].double().sum(0) for k in range(2)])
    assert (ours - exact).norm() < 0.005 * exact.norm()


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="top_k must be in"):
        SMoERouter(4, 2, 3)
    with pytest.raises(ValueError, match="activation must be one of"):
        Experts(2, 4, 4, activation="tanh")
    with pytest.raises(ValueError, match="num_experts"):
        MoELayer(Experts(2, 4, 4), SMoERouter(4, 3, 1))
    with pytest.raises(ValueError, match="capacity_factor"):
        MoELayer(Experts(2, 4, 4), SMoERouter(4, 2, 1), capacity_factor=0)
    with pytest.raises(ValueError, match="reduced_dim"):
        XMoERouter(4, 2, 1, reduced_dim=0)
    with pytest.raises(ValueError, match="embedding_norm"):
        EmbeddingRouter(4, 2, 1, embedding_norm=-1.0)
