"""F-Fidelity: removal curves against the published loop and against Quantus."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.optional import require
from ritornello.experiments.benchmarks.harness import Benchmark
from ritornello.experiments.f_fidelity.networks import ImageNetwork, ResNet9
from ritornello.methods.f_fidelity import (
    RandomRemoval,
    RemovalSpec,
    gradcam,
    reference,
    removal_curve,
)
from ritornello.methods.f_fidelity.finetune import train_classifier

_SIZES = [i / 20 for i in range(1, 21)]
_STRIPES = 10
Case = tuple[nn.Module, Tensor, Tensor, Tensor]


def benchmarks() -> Iterator[Benchmark]:
    """F-Fidelity curves (20 sizes, 50 masks) at CIFAR size; one plain curve."""
    yield _curve("all masks", {}, target=None)
    early = {"early_stop": 5}
    yield _curve("early_stop=5, a third of the answers undecided", early, target=15.0)
    yield _curve("early_stop=5, clear answers", early, target=15.0, contrast=1.0)
    if torch.cuda.is_available():
        yield _curve("all masks, ResNet-9", {}, target=50.0, device="cuda")
    yield from _quantus()


def _pictures(count: int, seed: int, contrast: float) -> tuple[Tensor, Tensor]:
    """Noise over stripes of one of ten directions, (count, 3, 32, 32)."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(_STRIPES, (count,), generator=g)
    angle = labels * torch.pi / _STRIPES
    place = torch.arange(32.0)
    along = angle.cos()[:, None, None] * place[:, None] + angle.sin()[:, None, None] * place
    phase = 6.28 * torch.rand(count, 1, 1, generator=g)
    stripes = (along * 0.8 + phase).sin()
    noise = torch.randn(count, 3, 32, 32, generator=g)
    return contrast * stripes[:, None] + noise, labels


@cache
def _case(images: int, contrast: float = 0.45, device: str = "cpu") -> Case:
    """A judge trained under removal, unseen pictures, their labels and GradCAM of them.

    Answers of an untrained network to noise would be a toss-up at every size.
    """
    torch.manual_seed(0)
    model = ResNet9(_STRIPES) if device == "cuda" else ImageNetwork(3, (16, 32), _STRIPES)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        return _pictures(64, 1 + number, contrast)

    train_classifier(
        model,
        batch,
        steps=150,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        augmentation=RandomRemoval(0.1),
        accelerator="gpu" if device == "cuda" else "cpu",
    )
    model = model.eval().to(device)
    x, y = (part.to(device) for part in _pictures(images, 0, contrast))
    layer = "res1" if device == "cuda" else "0"
    return model, x, y, gradcam(model, x, y, layer=layer)


def _curve(
    name: str,
    how: dict[str, Any],
    *,
    target: float | None,
    contrast: float = 0.45,
    device: str = "cpu",
) -> Benchmark:
    capped = {"alpha": 0.5, "beta": 0.1}
    case = partial(_case, 8, contrast, device)
    return Benchmark(
        f"F-Fidelity MoRF, 8 x 32x32, 20 sizes, 50 masks, {name}",
        ours=lambda: removal_curve(*case(), _SIZES, **capped, **how).mean(0),
        peer=lambda: reference.removal_curve(*case(), _SIZES, **capped).mean(0),
        peer_name="one image and one size at a time",
        target=target,
        # Two draws of 50 masks for each of 8 images.
        agree=lambda a, b: torch.testing.assert_close(a.cpu(), b.cpu(), atol=0.1, rtol=0),
        seconds=10,
    )


def _quantus() -> Iterator[Benchmark]:
    try:
        quantus = require("quantus", extra="bench")
    except UserError:
        return
    flipping = quantus.PixelFlipping(
        features_in_step=128,
        perturb_baseline=0.0,
        abs=False,
        normalise=False,
        disable_warnings=True,
        return_aggregate=False,
    )
    steps = [i / 24 for i in range(1, 25)]

    def cells() -> Case:
        model, x, y, scores = _case(16)
        # Noise breaks the ties of a map in which all three channels are alike.
        noise = 1e-3 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
        return model, x, y, scores[:, None] + noise

    def theirs() -> Tensor:
        model, x, y, scores = cells()
        found = flipping(
            model=model, x_batch=x.numpy(), y_batch=y.numpy(), a_batch=scores.numpy(),
            device="cpu", softmax=True,
        )  # fmt: skip
        return torch.tensor(found)

    element = RemovalSpec(unit="element")
    yield Benchmark(
        "plain MoRF, 16 x 3x32x32, 24 steps",
        ours=lambda: removal_curve(*cells(), steps, reduce="prob", removal=element)[:, 1:],
        peer=theirs,
        peer_name="Quantus PixelFlipping",
        agree=lambda a, b: torch.testing.assert_close(a, b.to(a), atol=1e-4, rtol=0),
        seconds=6,
    )
