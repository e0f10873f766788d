"""F-Fidelity: removal curves against the published loop and against Quantus."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.optional import require
from ritornello.experiments.benchmarks.harness import Benchmark
from ritornello.experiments.f_fidelity.networks import ImageNetwork, ResNet9
from ritornello.methods.f_fidelity import RemovalSpec, Sampling, reference, removal_curve

_SIZES = [i / 20 for i in range(1, 21)]


def benchmarks() -> Iterator[Benchmark]:
    """One F-Fidelity curve (20 sizes, 50 masks) at CIFAR size; one plain curve."""
    small = ImageNetwork(3, (8, 8), 10).eval()
    yield _curve("small network", small, images=4, early_stop=None, target=None)
    yield _curve("small network, early stop", small, images=4, early_stop=8, target=15.0)
    if torch.cuda.is_available():
        yield _curve("ResNet-9", ResNet9(10).eval().cuda(), images=8, early_stop=None, target=50.0)
    yield from _quantus(small)


def _case(model: nn.Module, images: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 3, 32, 32, generator=generator)
    scores = torch.randn(images, 32, 32, generator=generator)
    device = next(model.parameters()).device
    x = x.to(device)
    with torch.no_grad():
        labels = model(x).argmax(1)
    return x, labels, scores.to(device)


def _curve(
    name: str, model: nn.Module, *, images: int, early_stop: int | None, target: float | None
) -> Benchmark:
    case = _case(model, images)
    sampling = Sampling(50, early_stop=early_stop)
    how = {"alpha": 0.5, "beta": 0.1}
    return Benchmark(
        f"F-Fidelity MoRF, {images} x 32x32, 20 sizes, 50 masks, {name}",
        ours=lambda: removal_curve(model, *case, _SIZES, sampling=sampling, **how).mean(0),
        peer=lambda: reference.removal_curve(model, *case, _SIZES, **how).mean(0),
        peer_name="one image and one size at a time",
        target=target,
        # Two draws of 50 masks.
        agree=lambda a, b: torch.testing.assert_close(a.cpu(), b.cpu(), atol=0.2, rtol=0),
        seconds=10,
    )


def _quantus(model: nn.Module) -> Iterator[Benchmark]:
    try:
        quantus = require("quantus", extra="bench")
    except UserError:
        return
    x, labels, scores = _case(model, 16)
    cells = scores[:, None] + torch.linspace(0, 1e-3, 3).view(1, 3, 1, 1)
    flipping = quantus.PixelFlipping(
        features_in_step=128,
        perturb_baseline=0.0,
        abs=False,
        normalise=False,
        disable_warnings=True,
        return_aggregate=False,
    )
    steps = [i / 24 for i in range(1, 25)]
    yield Benchmark(
        "plain MoRF, 16 x 3x32x32, 24 steps",
        ours=partial(_plain, model, x, labels, cells, steps),
        peer=lambda: torch.tensor(
            flipping(
                model=model, x_batch=x.numpy(), y_batch=labels.numpy(), a_batch=cells.numpy(),
                device="cpu", softmax=True,
            )
        ),
        peer_name="Quantus PixelFlipping",
        agree=lambda a, b: torch.testing.assert_close(a, b.to(a), atol=1e-4, rtol=0),
        seconds=6,
    )  # fmt: skip


def _plain(
    model: nn.Module, x: Tensor, labels: Tensor, scores: Tensor, sizes: list[float]
) -> Tensor:
    curve = removal_curve(
        model, x, labels, scores, sizes,
        removal=RemovalSpec("element"), sampling=Sampling(reduce="prob"),
    )  # fmt: skip
    return curve[:, 1:]
