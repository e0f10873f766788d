"""The published checkpoints, measured on a test set."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.topograph.data import SegmentationData
from ritornello.experiments.topograph.experiment import mask_errors
from ritornello.experiments.topograph.residual_unet import ResidualUNet, load_published
from ritornello.experiments.topograph.training import predict


@dataclass(frozen=True)
class Checkpoint:
    """A file of the official repository, below `checkpoints/cremi/<loss>/`.

    Attributes:
        path: the file, or a pattern that matches one.
    """

    path: str

    def prepare(self) -> None:
        """Reads the network once, before anything is trained."""
        self.network()

    def network(self) -> ResidualUNet:
        """The network, on the CPU."""
        files = glob.glob(self.path)
        if len(files) != 1:
            raise UserError(
                f"path={self.path!r} must match one checkpoint, it matches {len(files)} files"
            )
        return load_published(files[0])


@dataclass
class Published(Experiment):
    """Topological errors of a published network.

    Attributes:
        data: of which the test set is taken.
        device: where the network runs.
        batch_size: images at a time.
    """

    data: SegmentationData
    device: str
    batch_size: int

    def prepare(self) -> None:
        """Looks at the images."""
        self.data.check()

    def measure(self, arm: Checkpoint, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Errors of the published network on the test set."""
        network = arm.network().to(self.device)
        images, masks = self.data.load("test", cell.seed)
        yield from mask_errors(predict(network, images, self.batch_size), masks, classes=2)
