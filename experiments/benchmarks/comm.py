"""CoMM's training step, loss and pictures against the published way of computing them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ritornello.common.data.trifeature import (
    BACKGROUND,
    COLOURS,
    MAX_ANGLE,
    SHAPES,
    TEXTURES,
    TrifeatureRenderer,
    shape_template,
)
from ritornello.common.optional import require
from ritornello.experiments.benchmarks import Benchmark
from ritornello.experiments.comm.pictures import IMAGENET, small_architecture
from ritornello.methods.comm import (
    CoMM,
    CoMMLoss,
    FusionTransformer,
    MultimodalEncoder,
    PatchedInputAdapter,
    SimpleFeaturesInputAdapter,
    nt_xent,
    reference,
)
from ritornello.methods.comm.augmentation import Augmentations, ImageAugmentation
from ritornello.methods.comm.encoder import projected_subsets
from ritornello.methods.comm.model import projection_head
from ritornello.methods.comm.training import parameter_groups


def _agree(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def benchmarks() -> Iterator[Benchmark]:
    """Targets of the specification: 3 times for the step, 50 times for rendering."""
    generator = torch.Generator().manual_seed(0)
    yield from _steps(generator)
    yield from _picture_steps(generator)
    yield from _losses(generator)
    yield from _pictures()


def _separate_passes(model: CoMM, views: list[list[Tensor]]) -> Tensor:
    """One fusion pass a subset and view, on the tokens of the subset alone; then the loss."""
    projected = []
    for view in views:
        tokens, _ = model.encoder.tokens(view)
        row = []
        for subset in projected_subsets(len(tokens)):
            chosen = [t for t, used in zip(tokens, subset, strict=True) if used]
            row.append(
                model.head(reference.fuse_one_subset(model.encoder.fusion_transformer, chosen))
            )
        projected.append(row)
    return reference.comm_loss(*projected)


def _steps(generator: torch.Generator) -> Iterator[Benchmark]:
    """Encoders are the same on both sides; the fusion passes and the loss differ."""
    torch.manual_seed(0)
    codes = MultimodalEncoder(
        [nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 128)) for _ in range(2)],
        [SimpleFeaturesInputAdapter(4) for _ in range(2)],
        FusionTransformer(32, 4),
    )
    maps = MultimodalEncoder(
        [nn.Conv2d(32, 32, 1) for _ in range(2)],
        [PatchedInputAdapter(32, 512, 6) for _ in range(2)],
        FusionTransformer(512),
    )
    vectors = [[torch.randn(128, 48, generator=generator) for _ in range(2)] for _ in range(2)]
    grids = [[torch.randn(64, 32, 6, 6, generator=generator) for _ in range(2)] for _ in range(2)]
    cases = (
        (
            "4 tokens a modality, width 32, batch 128",
            CoMM(codes, projection_head(32, 128, 64)),
            vectors,
        ),
        ("36 tokens a modality, width 512, batch 64", CoMM(maps), grids),
    )
    for name, model, views in cases:
        weights = [p for p in model.parameters() if p.requires_grad]

        def gradients(loss: Tensor, weights: list = weights) -> Any:
            found = torch.autograd.grad(loss, weights, allow_unused=True)
            return [loss.detach(), *(g for g in found if g is not None)]

        def same(ours: Any, theirs: Any) -> None:
            _agree(ours[0], theirs[0])
            # the key's bias has a gradient of zero, up to rounding: compare the whole
            for a, b in zip(ours[1:], theirs[1:], strict=True):
                assert float((a - b).norm()) <= 1e-3 * float(b.norm()) + 1e-4

        yield Benchmark(
            f"forward and backward of a step, {name}",
            lambda m=model, v=views, g=gradients: g(m(*v).loss),
            lambda m=model, v=views, g=gradients: g(_separate_passes(m, v)),
            "one pass a subset", target=3.0, agree=same, seconds=3,
        )  # fmt: skip


def _picture_steps(generator: torch.Generator) -> Iterator[Benchmark]:
    """SimCLR's augmentation, and a whole step from pictures to new weights, optimiser included.

    The peer augments picture by picture through PIL, as the published code does. Draws differ, so
    that the values are not compared; the tests compare each change with torchvision's.
    """
    from PIL import ImageFilter
    from torchvision import transforms

    def blur(picture: Any) -> Any:
        sigma = float(torch.empty(()).uniform_(0.1, 2.0))
        return picture.filter(ImageFilter.GaussianBlur(sigma))

    def as_pil(pictures: Tensor) -> list[Any]:
        return [transforms.functional.to_pil_image(x) for x in pictures]

    def one_by_one(pictures: list[Any]) -> Tensor:
        side = pictures[0].width
        change = transforms.Compose([
            transforms.RandomResizedCrop(side, (0.08, 1.0)),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            transforms.RandomGrayscale(0.2),
            transforms.RandomApply([blur], 0.5),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(*IMAGENET),
        ])  # fmt: skip
        return torch.stack([change(picture) for picture in pictures])

    at_once = ImageAugmentation(normalize=IMAGENET)
    for side in (32, 224):
        pictures = torch.rand(64, 3, side, side, generator=generator)
        drawn = as_pil(pictures)
        yield Benchmark(
            f"SimCLR's augmentation of 64 pictures of {side} pixels",
            lambda x=pictures: at_once(x), lambda x=drawn: one_by_one(x),
            "torchvision on PIL, one by one", seconds=3,
        )  # fmt: skip
    torch.manual_seed(0)
    nets = small_architecture()
    model = CoMM(MultimodalEncoder(nets.encoders, nets.adapters, FusionTransformer(nets.width)))
    pairs = [torch.rand(64, 3, 32, 32, generator=generator) for _ in range(2)]
    fused, plain = (
        torch.optim.AdamW(parameter_groups(model, 1e-4), lr=3e-4, fused=fused)
        for fused in (True, False)
    )

    def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    both, as_drawn = Augmentations([at_once, at_once]), [as_pil(x) for x in pairs]
    yield Benchmark(
        "a whole training step, 64 pairs of 32 pixels, four convolutions, width 64",
        lambda: step(fused, model.training_loss(pairs, both).loss),
        lambda: step(
            plain, _separate_passes(model, [[one_by_one(x) for x in as_drawn] for _ in range(2)])
        ),
        "torchvision on PIL, one pass a subset", target=3.0, seconds=5,
    )  # fmt: skip


def _losses(generator: torch.Generator) -> Iterator[Benchmark]:
    def pair(n: int, dim: int) -> list[Tensor]:
        return [torch.randn(n, dim, generator=generator).requires_grad_() for _ in range(2)]

    def run(loss: Callable, a: Tensor, b: Tensor) -> Any:
        return torch.autograd.grad(loss(a, b), (a, b))

    views = [
        [torch.randn(256, 256, generator=generator).requires_grad_() for _ in range(3)]
        for _ in range(2)
    ]
    everything = [*views[0], *views[1]]
    yield Benchmark(
        "CoMM loss, 2 modalities, 256 samples, 256 wide, with gradients",
        lambda: torch.autograd.grad(CoMMLoss()(*views).loss, everything),
        lambda: torch.autograd.grad(reference.comm_loss(*views), everything),
        "2N x 2N matrices", agree=_agree,
    )  # fmt: skip
    a, b = pair(4096, 128)
    yield Benchmark(
        "NT-Xent, 4096 samples, 128 wide, with gradients",
        lambda: run(nt_xent, a, b), lambda: run(reference.nt_xent_matrix, a, b),
        "2N x 2N matrix", agree=_agree, seconds=3,
    )  # fmt: skip
    losses = require("pytorch_metric_learning.losses", extra="bench")
    theirs = losses.NTXentLoss(temperature=0.1)
    c, d = pair(128, 128)
    number = torch.arange(128).repeat(2)

    def library(a: Tensor, b: Tensor) -> Tensor:
        return theirs(torch.cat([F.normalize(a), F.normalize(b)]), number)

    yield Benchmark(
        "NT-Xent, 128 samples, 128 wide, with gradients",
        lambda: run(nt_xent, c, d), lambda: run(library, c, d),
        "pytorch-metric-learning", agree=_agree,
    )  # fmt: skip


def _row_by_pixels(name: str, i: int, columns: range, n: int) -> list[bool]:
    """The filled pixels of a texture's row, one by one, with the published NumPy calls in it."""
    y, middle = i % n, n // 2
    odd = i // n % 2
    if name == "stripes":
        return [y < n // 3] * len(columns)
    if name == "grid":
        return [y < n // 3 or j % n < n // 3 for j in columns]
    if name == "hexgrid":
        return [
            (j + int(1.73 * i)) % n < n // 5 or (j - int(1.73 * i)) % n < n // 5 or y < n // 5
            for j in columns
        ]
    if name == "dots":
        return [(y - middle) ** 2 + (j % n - middle) ** 2 < (3 * n // 7) ** 2 for j in columns]
    if name == "triangles":
        return [bool(y // 2 - np.abs(j % n - middle) > 0) for j in columns]
    if name == "zigzags":
        xs = [n - j % n - 1 if odd else j % n for j in columns]
        return [y // 2 < x < n - middle + y // 2 for x in xs]
    if odd:  # pluses
        return [
            j % n < 1.5 or n - j % n < 1.5 or np.abs(y - middle) < 1.5 < np.abs(j % n - middle)
            for j in columns
        ]
    return [bool(np.abs(j % n - middle) < 1.5 or np.abs(y - middle) < 1.5) for j in columns]


def _texture_by_pixels(name: str, size: int, scale: int, rng: np.random.Generator) -> np.ndarray:
    offset_x, offset_y = int(rng.integers(0, scale)), int(rng.integers(0, scale))
    if name == "solid":
        return np.ones((size, size), np.float32)
    if name == "noise":
        return rng.binomial(1, 0.5, (size, size))
    drawn = np.zeros((size, size), np.float32)
    if name == "rain":
        rng.integers(0, scale)
    for i in range(size):
        if name == "rain":
            for j in range(size):
                if rng.binomial(1, 0.05):
                    drawn[i : i + scale - scale // 3, j] = 1.0
        else:
            columns = range(offset_x, offset_x + size)
            drawn[i] = _row_by_pixels(name, i + offset_y, columns, scale)
    return drawn


def _pixel_by_pixel(
    shape: str, colour: str, texture: str, templates: dict[str, np.ndarray], seed: int
) -> np.ndarray:
    """The published order of work: the whole texture by loops, turned, cropped, laid on."""
    from scipy import ndimage

    rng = np.random.default_rng(seed)
    turned = ndimage.rotate(templates[shape], int(rng.integers(-MAX_ANGLE, MAX_ANGLE)), order=1)
    size, side = 224, len(turned)
    top, left = int(rng.integers(0, size - side)), int(rng.integers(0, size - side))
    place = np.zeros((size, size), np.float32)
    place[top : top + side, left : left + side] = turned
    drawn = _texture_by_pixels(texture, 2 * size, 10, rng)
    angle = int(rng.integers(-MAX_ANGLE, MAX_ANGLE))
    drawn = ndimage.rotate(drawn, angle, order=0, reshape=False)
    half = size // 2
    share = (place * drawn[half:-half, half:-half])[:, :, None]
    image = share * np.array(COLOURS[colour], np.float32) + (1 - share) * np.float32(BACKGROUND)
    return (image * 255).astype(np.uint8)


def _pictures() -> Iterator[Benchmark]:
    """The first twelve combinations that a seed draws; templates are ready on both sides."""
    renderer, templates = TrifeatureRenderer(), {name: shape_template(name) for name in SHAPES}
    chosen = np.random.default_rng(0).integers(0, 10, (12, 3))
    sample = [(SHAPES[s], tuple(COLOURS)[c], TEXTURES[t]) for s, t, c in chosen]

    def ours() -> list[np.ndarray]:
        return [renderer.render(*what, np.random.default_rng(k)) for k, what in enumerate(sample)]

    def peer() -> list[np.ndarray]:
        return [_pixel_by_pixel(*what, templates, seed=k) for k, what in enumerate(sample)]

    def close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
        assert np.abs(np.array(ours).astype(int) - np.array(theirs)).max() <= 1

    yield Benchmark(
        "12 pictures of 224 pixels, shape, texture and colour at random",
        ours, peer, "loops over pixels", target=50.0, agree=close, seconds=5,
    )  # fmt: skip
