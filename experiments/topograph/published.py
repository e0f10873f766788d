"""The published checkpoints, measured on a test set."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.topograph.data import SegmentationData
from ritornello.experiments.topograph.experiment import mask_errors
from ritornello.experiments.topograph.residual_unet import load_published
from ritornello.experiments.topograph.training import predict


@dataclass(frozen=True)
class Checkpoint:
    """A file of the official repository, below `checkpoints/cremi/<loss>/`.

    Attributes:
        path: the file, or a pattern that matches one.
    """

    path: str


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
        files = glob.glob(arm.path)
        if len(files) != 1:
            raise UserError(
                f"parts.{cell.part}.arms.{cell.arm}.path={arm.path!r} must match one checkpoint, "
                f"it matches {len(files)} files"
            )
        network = load_published(files[0]).to(self.device)
        images, masks = self.data.load("test", cell.seed)
        yield from mask_errors(predict(network, images, self.batch_size), masks, classes=2)
