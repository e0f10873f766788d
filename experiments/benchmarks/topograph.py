"""Topograph: the loss against the published procedure, gudhi and Betti matching; linear growth."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ritornello.experiments.benchmarks.harness import Benchmark
from ritornello.experiments.topograph.networks import networks, scores_around
from ritornello.methods.topograph import BettiMatchingLoss, HuTopoLoss, TopographLoss, diu

Step = Callable[[], Tensor]


def benchmarks() -> Iterator[Benchmark]:
    """Forward and backward on one thread, on networks of which 4 % of the pixels are critical."""
    torch.set_num_threads(1)
    shape = "4×256²"
    published = _step(TopographLoss(backend="reference"), 4, 256)
    hutopo, matching = _step(HuTopoLoss(), 4, 256), _step(BettiMatchingLoss(), 4, 256)
    compiled = _step(TopographLoss(), 4, 256)
    name = "the published procedure"
    yield _pair(f"{shape}, compiled", compiled, published, name, 25, agree=True)
    plain = _step(TopographLoss(backend="scipy"), 4, 256)
    yield _pair(f"{shape}, no compiler", plain, published, name, 8, agree=True)
    yield _pair(f"{shape}, compiled", compiled, hutopo, "HuTopo through gudhi", 13)
    yield _pair(f"{shape}, compiled", compiled, matching, "our compiled Betti matching", 5)
    small, large = (_step(TopographLoss(), 1, size) for size in (256, 1024))
    # Linear growth: 16 times the pixels take 16 times the time.
    yield _pair("1×256²", small, large, "1×1024² (linear: 16)", None)
    pred, gt = (x[:, 1] > 0 for x in _problem(4, 256))
    yield Benchmark(
        f"exact DIU, {shape}",
        ours=lambda: diu(pred, gt).total,
        peer=lambda: diu(pred, gt, backend="scipy").total,
        peer_name="labelled by scipy",
        agree=torch.testing.assert_close,
        seconds=5,
    )


def _problem(batch: int, size: int) -> tuple[Tensor, Tensor]:
    _, target = networks(batch, size, 0)
    logits = scores_around(target, 0, noise=0.7)
    return logits, torch.stack([1 - target, target], 1)


def _step(loss: nn.Module, batch: int, size: int) -> Step:
    logits, one_hot = _problem(batch, size)
    return partial(_forward_backward, loss, logits.requires_grad_(), one_hot.argmax(1))


def _forward_backward(loss: nn.Module, logits: Tensor, target: Tensor) -> Tensor:
    logits.grad = None
    value = loss(logits, target)
    value.backward()
    return torch.cat([value.detach()[None], logits.grad.flatten()])


def _pair(
    name: str, ours: Step, peer: Step, peer_name: str, target: float | None, agree: bool = False
) -> Benchmark:
    check = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6) if agree else None
    return Benchmark(
        f"loss, forward + backward, {name}",
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        target=target,
        agree=check,
        seconds=12,
    )
