"""Mosinska et al. (2018), which the paper compares with: masks that look alike to a VGG19."""

import functools
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from urllib.error import URLError

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.common.errors import UserError
from ritornello.methods.topograph.inputs import scores_and_classes

_STAGES = ((0, 4), (4, 9), (9, 18))  # of VGG19's layers, up to conv1_2, conv2_2, conv3_4 and ReLU
_SMALLEST = 4  # pixels that two poolings leave one of
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours


class MosinLoss(nn.Module):
    """Mean squared differences of the features of masks and labels, summed over three layers.

    Args:
        softmax: whether the input is logits; else it is class probabilities.
        include_background: whether class 0 counts too.
        weights: "imagenet" (torchvision fetches them), or a file of the weights of its VGG19. They
            are read at the first call and kept.
    """

    def __init__(
        self, softmax: bool = True, include_background: bool = False, weights: str = "imagenet"
    ):
        super().__init__()
        self.softmax, self.include_background = softmax, include_background
        self.weights = weights

    def forward(
        self, logits: Float[Tensor, "batch classes height width"], target: Tensor
    ) -> Float[Tensor, ""]:
        """The mean over images and classes, each class against the rest as a grey picture.

        Args:
            logits: scores of each class.
            target: class indices (batch, height, width) or one-hot.

        Raises:
            ValueError: as `TopographLoss`; images of less than 4 pixels a side; weights that cannot
                be had.
        """
        scores, classes = scores_and_classes(logits, target, softmax=self.softmax)
        if min(logits.shape[2:]) < _SMALLEST:
            raise ValueError(
                f"logits must be at least {_SMALLEST} pixels high and wide, "
                f"got {tuple(logits.shape[2:])}"
            )
        kinds = range(0 if self.include_background else 1, scores.shape[1])
        scores = scores[:, kinds.start :].float()
        labels = torch.stack([classes == k for k in kinds], dim=1).float()
        stages = _vgg19(self.weights, logits.device)
        with torch.no_grad():
            wanted = _features(labels, stages)
        found = _features(scores, stages)
        pairs = zip(found, wanted, strict=True)
        return sum((F.mse_loss(x, y) for x, y in pairs), scores.new_zeros(())).to(logits.dtype)


def _features(masks: Float[Tensor, "batch kinds height width"], stages: nn.ModuleList) -> list:
    mean, std = (masks.new_tensor(colours)[:, None, None] for colours in (_MEAN, _STD))
    x = (masks.flatten(0, 1)[:, None] - mean) / std
    features = []
    for stage in stages:
        x = stage(x)
        features.append(x)
    return features


@functools.cache
def _vgg19(weights: str, device: torch.device) -> nn.ModuleList:
    """The layers that are used, in three stages, without gradients."""
    from torchvision.models import vgg19

    with torch.device("meta"):
        features = vgg19(weights=None).features
    assert isinstance(features, nn.Sequential)
    layers = features[: _STAGES[-1][1]]
    state = _fetched() if weights == "imagenet" else _read(Path(weights))
    try:
        used = {name: state[f"features.{name}"] for name in layers.state_dict()}
        layers.load_state_dict(used, assign=True)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"weights={weights!r} are not those of a VGG19: {error}") from error
    stages = nn.ModuleList(layers[first:last] for first, last in _STAGES)
    return stages.requires_grad_(False).to(device)


def _fetched() -> Mapping[str, Tensor]:
    from torchvision.models import VGG19_Weights

    try:
        return VGG19_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
    except URLError as error:
        raise UserError(
            f"weights='imagenet': VGG19's cannot be fetched ({error}); name a file of them"
        ) from error


def _read(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        raise UserError(f"weights={str(file)!r}: there is no such file")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (KeyError, RuntimeError, EOFError, UnpicklingError) as error:
        raise UserError(f"weights={str(file)!r} cannot be read: {error}") from error
    return state if isinstance(state, Mapping) else {}
