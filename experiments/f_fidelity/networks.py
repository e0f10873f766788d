"""The classifiers that are judged: small ones, and the paper's ResNet-9."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError, one_line
from ritornello.common.models.hub import hub_snapshot

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ImageNetwork(nn.Sequential):
    """Convolutions with batch norm, max-pools after the first two, a global max-pool."""

    def __init__(self, channels: int, widths: tuple[int, ...], classes: int) -> None:
        layers: list[nn.Module] = []
        before = channels
        for number, width in enumerate(widths):
            block = [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            pool = [nn.MaxPool2d(2)] if number < 2 else []
            layers.append(nn.Sequential(*block, nn.ReLU(), *pool))
            before = width
        head = [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
        super().__init__(*layers, *head)
        self.to(memory_format=torch.channels_last)


class SeriesNetwork(nn.Module):
    """A convolutional classifier of (batch, time, sensors)."""

    def __init__(self, sensors: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(sensors, width, 7, padding=3), nn.BatchNorm1d(width), nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, classes),
        )  # fmt: skip

    def forward(self, series: Tensor) -> Tensor:
        """(batch, time, sensors) → logits."""
        return self.layers(series.transpose(1, 2))


def text_network(
    vocabulary: int, classes: int, *, width: int = 32, layers: int = 1, max_tokens: int = 64
) -> "PreTrainedModel":
    """A small untrained BERT classifier of transformers; token 0 is the pad."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=max_tokens,
        num_labels=classes,
        pad_token_id=0,
    )
    return BertForSequenceClassification(config)


def pretrained_text_network(checkpoint: str, classes: int) -> "PreTrainedModel":
    """A `*ForSequenceClassification` from the hub or a folder.

    Raises:
        UserError: the checkpoint cannot be had or is not usable.
    """
    from transformers import AutoModelForSequenceClassification

    folder = hub_snapshot(checkpoint, weights=True)
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=classes, local_files_only=True
        )
    except Exception as error:
        raise UserError(
            f"{checkpoint} is no usable classifier of texts: {one_line(error)}"
        ) from error


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_block(width, width), _block(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _block(before: int, width: int, *, pool: bool = False) -> nn.Sequential:
    layers = [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResNet9(nn.Module):
    """ResNet-9 of widths 64-128-256-512 for 32 px images, dropout 0.2 before the head."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.conv1, self.conv2 = _block(3, 64), _block(64, 128, pool=True)
        self.res1 = _Residual(128)
        self.conv3, self.conv4 = _block(128, 256, pool=True), _block(256, 512, pool=True)
        self.res2 = _Residual(512)
        self.head = nn.Sequential(
            nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 32, 32) → logits."""
        x = self.res1(self.conv2(self.conv1(x)))
        return self.head(self.res2(self.conv4(self.conv3(x))))


def timm_network(
    name: str, classes: int, *, pretrained: bool = False, enlarge_to: int | None = None
) -> nn.Module:
    """Any classifier of timm (`resnet18`, `vit_small_patch16_224`, ...).

    Args:
        pretrained: whether to start from ImageNet's weights, which timm takes from the hub.
        enlarge_to: side that images are enlarged to first, for networks of a fixed input size.
    """
    import timm

    try:
        network = timm.create_model(name, pretrained=pretrained, num_classes=classes)
    except Exception as error:
        raise UserError(
            f"timm could not make {name} with pretrained={pretrained} ({error}): its weights come "
            "from the hub; task.network.pretrained=false starts from random ones"
        ) from error
    if enlarge_to is None:
        return network
    return nn.Sequential(nn.Upsample((enlarge_to, enlarge_to), mode="bilinear"), network)
