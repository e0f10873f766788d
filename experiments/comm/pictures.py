"""The paper's controlled experiment: bimodal Trifeatures, drawn on the spot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from ritornello.common.cache import cached_directory
from ritornello.common.data.trifeature import TrifeatureRenderer, Trifeatures, trifeatures
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.experiments.comm.figures import save_embedding, save_pairs
from ritornello.experiments.comm.training import Batch, Contrastive, rows_of_batch
from ritornello.methods.comm import BimodalTrifeatures, PatchedInputAdapter
from ritornello.methods.comm.augmentation import (
    Augmentations,
    ImageAugmentation,
    RandomResizedCrop,
)
from ritornello.methods.comm.trifeatures import TASKS

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def small_architecture() -> Architecture:
    """Four convolutions to a map of 4 × 4 for pictures of 32 pixels, one net a modality."""

    def net() -> nn.Module:
        widths, layers = (3, 24, 24, 48, 64), []
        for place, (a, b) in enumerate(pairwise(widths)):
            stride = 1 if place == 1 else 2
            layers += [nn.Conv2d(a, b, 3, stride=stride, padding=1), nn.ReLU()]
        return nn.Sequential(*layers)

    adapters: list[nn.Module | None] = [PatchedInputAdapter(64, 64, 4) for _ in range(2)]
    return Architecture([net(), net()], adapters, [64 * 16, 64 * 16], width=64)


def alexnet_architecture() -> Architecture:
    """Two AlexNets without shared weights, 256 × 6 × 6, width 512: the paper's."""
    from torchvision.models import alexnet

    encoders: list[nn.Module] = [alexnet(weights=None).features for _ in range(2)]
    adapters: list[nn.Module | None] = [PatchedInputAdapter(256, 512, 6) for _ in range(2)]
    return Architecture(encoders, adapters, [256 * 36, 256 * 36], width=512)


@dataclass
class Pictures(Contrastive):
    """Shape shared, textures unique, texture and colour in synergy.

    The grid coordinate `bias` says which pairs train: with it only those where synergy holds (for
    the synergy score), without it all (for the others). Probing is always on all pairs.

    Args:
        architecture: makes the encoders.
        renderer: size of the pictures.
        max_pairs: training pairs.
        probe_pairs: training pairs that probes are fitted on.
        test_pairs: pairs that probes are tested on; 4094 are all.
        crop: smallest share of the area that a training crop keeps; a grid coordinate `crop`
            replaces it.
        random_evaluation: crops at random in probing too, as the official code does.
        views: renderings of each training combination.
        data_seed: of pictures, split and bijection: the same for all seeds.
    """

    architecture: Callable[[], Architecture] = small_architecture
    renderer: TrifeatureRenderer = field(default_factory=TrifeatureRenderer)
    max_pairs: int = 10_000
    probe_pairs: int = 4000
    test_pairs: int = 4094
    crop: float = 0.08
    random_evaluation: bool = False
    views: int = 3
    data_seed: int = 42

    def pictures(self, split: str) -> Trifeatures:
        """The rendered split, from the cache where it was rendered before."""
        r = self.renderer
        sizes = (r.size, r.shape_size, r.texture_scale, self.views, self.data_seed)
        name = f"trifeatures/{split}-{'-'.join(map(str, sizes))}"

        def build(folder) -> None:
            drawn = trifeatures(split, renderer=r, views=self.views, seed=self.data_seed)
            torch.save(torch.from_numpy(drawn.images), folder / "images.pt")

        file = cached_directory(name, build) / "images.pt"
        images = torch.load(file, weights_only=True).numpy()
        return trifeatures(split, renderer=r, views=self.views, seed=self.data_seed, images=images)

    def prepare(self) -> None:
        """Renders the pictures."""
        super().prepare()
        for split in ("train", "test"):
            self.pictures(split)

    def pairs(self, split: str, *, biased: bool, count: int) -> BimodalTrifeatures:
        """Pairs of a split."""
        return BimodalTrifeatures(
            split,  # type: ignore[arg-type]
            biased=biased,
            pictures=self.pictures(split),
            seed=self.data_seed,
            max_pairs=count,
        )

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Probe scores of the labels that this cell's training is for."""
        bias = bool(cell.coordinates.get("bias", False))
        crop = float(cell.coordinates.get("crop", self.crop))
        training = self.pairs("train", biased=bias, count=self.max_pairs)

        def batch(number: int, size: int) -> Batch:
            rows = rows_of_batch(len(training), size, number, cell.seed)
            return training.batch(rows), None

        augment = ImageAugmentation(RandomResizedCrop((crop, 1.0)), normalize=IMAGENET)
        model = self.train(
            arm, self.architecture, batch, Augmentations([augment, augment]), cell, context
        )
        train = self.pairs("train", biased=False, count=self.probe_pairs)
        test = self.pairs("test", biased=False, count=self.test_pairs)
        embedded = [self._embedded(model, pairs) for pairs in (train, test)]
        names = ["synergy"] if bias else [task for task in TASKS if task != "synergy"]
        labels = {
            "redundancy" if n == "share" else n: (train.labels[n], test.labels[n]) for n in names
        }
        yield from self.label_scores(*embedded, labels)
        save_embedding(context.artifacts, next(iter(embedded[1].values())), test.labels)
        save_pairs(context.artifacts, test)

    def _embedded(self, model: nn.Module, pairs: BimodalTrifeatures) -> dict[str, Tensor]:
        """Features of all pairs, not augmented."""
        crop = RandomResizedCrop((0.5, 1.0), flip=0.0)
        mean, deviation = (torch.tensor(v)[:, None, None] for v in IMAGENET)

        def plain(rows: Tensor) -> list[Tensor]:
            inputs = pairs.batch(rows)
            if self.random_evaluation:
                inputs = [crop(x) for x in inputs]
            return [(x - mean) / deviation for x in inputs]

        return self.embed(model, [torch.arange(len(pairs))], 256, load=plain)
