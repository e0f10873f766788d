"""DIU as a torchmetrics metric."""

import torch
from torch import Tensor
from torchmetrics import Metric

from ritornello.methods.topograph.codes import Connectivity, check_connectivity
from ritornello.methods.topograph.diu import Boundary, diu


class DIU(Metric):
    """ξ summed over classes, the mean over images.

    Args:
        num_classes: how many classes there are.
        include_background: whether class 0 counts too.
        connectivity, boundary: as in `diu`.
        ignore_index: target value whose pixels belong to no class in both masks.
    """

    full_state_update = False
    higher_is_better = False
    total: Tensor
    images: Tensor

    def __init__(
        self,
        num_classes: int = 2,
        include_background: bool = False,
        connectivity: Connectivity = 8,
        boundary: Boundary = "padded",
        ignore_index: int | None = None,
    ):
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"num_classes must be >= 2, got {num_classes}")
        check_connectivity(connectivity)
        self.classes = range(0 if include_background else 1, num_classes)
        self.connectivity: Connectivity = connectivity
        self.boundary: Boundary = boundary
        self.ignore_index = ignore_index
        self.add_state("total", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, pred: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            pred: class indices (batch, height, width), or one-hot or scores (batch, classes,
                height, width), of which the largest counts.
            target: class indices, or one-hot.

        Raises:
            ValueError: shapes that do not fit, indices outside [0, num_classes).
        """
        pred, target = self._indices("pred", pred), self._indices("target", target)
        if self.ignore_index is not None:
            ignored = target == self.ignore_index
            pred, target = pred.masked_fill(ignored, -1), target.masked_fill(ignored, -1)
        for name, index in (("pred", pred), ("target", target)):
            low = -1 if self.ignore_index is not None else 0
            if index.numel() and (index.min() < low or index.max() >= self.classes.stop):
                raise ValueError(
                    f"{name} must be in [0, num_classes={self.classes.stop}), got values from "
                    f"{int(index.min())} to {int(index.max())}"
                )
        for k in self.classes:
            self.total += diu(pred == k, target == k, self.connectivity, self.boundary).total.sum()
        self.images += len(pred)

    def _indices(self, name: str, value: Tensor) -> Tensor:
        if value.ndim == 4:
            if value.shape[1] != self.classes.stop:
                raise ValueError(
                    f"{name} must have num_classes={self.classes.stop} channels, "
                    f"got shape {tuple(value.shape)}"
                )
            return (value.int() if value.dtype == torch.bool else value).argmax(1)
        if value.ndim != 3:
            raise ValueError(
                f"{name} must be (batch, height, width) or (batch, classes, height, width), "
                f"got {tuple(value.shape)}"
            )
        return value.long()

    def compute(self) -> Tensor:
        """Mean over the images seen so far."""
        return self.total / self.images
