"""What is measured: which information each way of aligning two modalities keeps."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.experiments.comm.codes import LABELS, CodeWorld
from ritornello.experiments.comm.digits import Digits, ShiftedPictures, digit_architecture
from ritornello.experiments.comm.figures import figures, save_embedding
from ritornello.experiments.comm.pictures import Pictures
from ritornello.experiments.comm.training import Contrastive, Recipe, rows_of_batch
from ritornello.methods.comm import CoMM, SimpleFeaturesInputAdapter, interaction_report
from ritornello.methods.comm.augmentation import Augmentations, VectorAugmentation
from ritornello.methods.comm.pid import decompose

__all__ = ["Codes", "Decomposition", "Information", "Pictures", "Recipe", "Table", "figures"]


def code_architecture(features: int) -> Architecture:
    """An MLP 48-128-128 for each modality; 4 tokens of width 32."""
    encoders: list[nn.Module] = [
        nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 128)) for _ in range(2)
    ]
    adapters: list[nn.Module | None] = [SimpleFeaturesInputAdapter(4) for _ in range(2)]
    return Architecture(encoders, adapters, [128, 128], width=32, heads=4)


def subset_scores(
    model: CoMM,
    train: list[Tensor],
    test: list[Tensor],
    labels: dict[str, tuple[Tensor, Tensor]],
    probe: dict,
) -> Iterator[Measurement]:
    """Which modality gives what: probes of each modality alone and of both."""
    report = interaction_report(model, train, test, labels, **probe)
    for label, scores in report.items():
        for subset, value in scores.items():
            place = {"label": label, "subset": subset}
            yield Measurement("subset_score", value, "%", coordinates=place)


@dataclass
class Codes(Contrastive):
    """Redundancy, uniqueness and synergy in the world of codes.

    Args:
        probe_train, probe_test: samples for probing, never biased.
        augmentation: of both modalities; a grid coordinate `drop` replaces its share.
    """

    probe_train: int = 4000
    probe_test: int = 2000
    augmentation: VectorAugmentation = field(default_factory=VectorAugmentation)

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Probe scores of the four labels after training on biased pairs."""
        world = CodeWorld(cell.seed)
        drop = float(cell.coordinates.get("drop", self.augmentation.drop))
        augment = VectorAugmentation(self.augmentation.noise, drop)
        model = self.train(
            arm,
            lambda: code_architecture(world.features),
            lambda number, size: (world.sample(size, (1, number), biased=True).inputs, None),
            Augmentations([augment, augment]),
            cell,
            context,
        )
        train = world.sample(self.probe_train, (2,), biased=False)
        test = world.sample(self.probe_test, (3,), biased=False)
        labels = {name: (train.labels[name], test.labels[name]) for name in LABELS}
        embedded = self.embed(model, train.inputs), self.embed(model, test.inputs)
        yield from self.label_scores(*embedded, labels)
        save_embedding(context.artifacts, next(iter(embedded[1].values())), test.labels)
        if isinstance(model, CoMM):
            on_device = [[x.to(self.recipe.device) for x in s.inputs] for s in (train, test)]
            yield from subset_scores(model, *on_device, labels, self.probe)


@dataclass
class Table(Contrastive):
    """A real task: the class of a handwritten digit from a picture and a table.

    Args:
        data: the digits.
    """

    data: Digits = field(default_factory=Digits)

    def prepare(self) -> None:
        """Finds the data."""
        super().prepare()
        self.data.digest()

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Probe accuracy of the class, with one sample a test digit."""
        data = self.data
        context.uses("mnist_5k", data.digest())
        model = self.train(
            arm,
            digit_architecture,
            lambda number, size: data.batch(rows_of_batch(len(data), size, number, cell.seed)),
            Augmentations([ShiftedPictures(), VectorAugmentation()]),
            cell,
            context,
            data.n_classes,
        )
        (train, train_class), (test, test_class) = data.splits["train"], data.splits["test"]
        embedded = self.embed(model, train), self.embed(model, test)
        for place, kind in enumerate(embedded[0]):
            pair = (embedded[0][kind], train_class), (embedded[1][kind], test_class)
            result = self.probe_label(*pair)
            hits = 100 * (result.predictions == test_class).float()
            ending = "" if place == 0 else f"_{kind}"
            yield Measurement(f"accuracy{ending}", float(hits.mean()), "%", hits.tolist())
        save_embedding(context.artifacts, next(iter(embedded[1].values())), {"class": test_class})
        if isinstance(model, CoMM):
            labels = {"class": (train_class, test_class)}
            on_device = [[x.to(self.recipe.device) for x in s] for s in (train, test)]
            yield from subset_scores(model, *on_device, labels, self.probe)


@dataclass(frozen=True)
class Decomposition:
    """An arm of `Information`: the measure of shared information."""

    measure: str = "broja"


@dataclass
class Information(Experiment):
    """The exact decomposition of the code world's labels, in bits; nothing is trained."""

    def measure(
        self, arm: Decomposition, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        """The four atoms of every label, and the share of the label's entropy in its own atom."""
        world = CodeWorld(cell.seed)
        for label in LABELS:
            joint = world.joint(label)
            atoms = decompose(joint, arm.measure)  # type: ignore[arg-type]
            for atom, value in vars(atoms).items():
                place = {"label": label, "atom": atom}
                yield Measurement("information", value, "bits", coordinates=place)
            p = joint.sum(axis=(0, 1))
            entropy = float(-(p[p > 0] * np.log2(p[p > 0])).sum())
            own = getattr(atoms, label) / entropy
            yield Measurement("own_share", own, coordinates={"label": label})


@dataclass(frozen=True)
class Oracle:
    """An arm of `Readout`: what a probe is given of the codes."""

    products: bool


@dataclass
class Readout(Experiment):
    """Whether a linear probe can read the labels off perfect unimodal codes, or off their products.

    Args:
        probe: arguments of `linear_probe`.
        train, test: samples.
    """

    probe: dict = field(default_factory=dict)
    train: int = 4000
    test: int = 2000

    def measure(self, arm: Oracle, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """The probe's score of synergy."""
        from ritornello.methods.comm import linear_probe

        world, generator = CodeWorld(cell.seed), torch.Generator().manual_seed(cell.seed)
        pairs = []
        for count in (self.train, self.test):
            codes = torch.randint(world.values, (2, count), generator=generator)
            first, second = nn.functional.one_hot(codes, world.values).float()
            features = torch.cat([first, second], dim=1)
            if arm.products:
                features = (first[:, :, None] * second[:, None, :]).flatten(1)
            same = torch.from_numpy(world.bijection)[codes[0]] == codes[1]
            pairs.append((features, same.long()))
        yield Measurement("synergy", linear_probe(*pairs, **self.probe).value, "%")
