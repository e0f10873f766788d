"""MM-IMDb: the genres of a film from its poster and its plot, on frozen encoders."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.experiments.comm.training import Contrastive, rows_of_batch
from ritornello.methods.comm import FusionTransformer, MultimodalEncoder
from ritornello.methods.comm.augmentation import (
    Augmentations,
    ImageAugmentation,
    RandomResizedCrop,
    TokenMasking,
)
from ritornello.methods.comm.probe import score

GENRES = (
    "drama", "comedy", "romance", "thriller", "crime", "action", "adventure", "horror",
    "documentary", "mystery", "sci-fi", "music", "fantasy", "family", "biography", "war",
    "history", "animation", "musical", "western", "sport", "short", "film-noir",
)  # fmt: skip
_NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def clip_vision(name: str = "openai/clip-vit-base-patch32") -> nn.Module:
    """CLIP's picture encoder."""
    from transformers import CLIPVisionModel

    return CLIPVisionModel.from_pretrained(hub_snapshot(name), local_files_only=True)


def sentence_encoder(name: str = "sentence-transformers/clip-ViT-B-32-multilingual-v1") -> Any:
    """The text encoder that goes with it, and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    folder = hub_snapshot(name)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return AutoModel.from_pretrained(folder, local_files_only=True), tokenizer


class QueryTokens(nn.Module):
    """What BLIP-2's queries learn of a picture: the Q-Former's output on the patches.

    Args:
        model: transformers' `Blip2VisionModelWithProjection`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, pixel_values: Tensor) -> Any:
        """Queries (batch, 32, 768) as `last_hidden_state`."""
        patches = self.model.vision_model(pixel_values=pixel_values).last_hidden_state  # type: ignore
        queries = self.model.query_tokens.expand(len(patches), -1, -1)  # type: ignore[operator]
        return self.model.qformer(query_embeds=queries, encoder_hidden_states=patches)  # type: ignore


def blip2_vision(name: str = "Salesforce/blip2-itm-vit-g") -> nn.Module:
    """BLIP-2's picture encoder after its first stage of training, Q-Former included."""
    from transformers import Blip2VisionModelWithProjection

    folder = hub_snapshot(name)
    return QueryTokens(
        Blip2VisionModelWithProjection.from_pretrained(folder, local_files_only=True)
    )


def blip2_text(name: str = "Salesforce/blip2-itm-vit-g") -> Any:
    """The same Q-Former as text encoder, without queries, and its tokenizer."""
    from transformers import AutoTokenizer, Blip2TextModelWithProjection

    folder = hub_snapshot(name)
    model = Blip2TextModelWithProjection.from_pretrained(folder, local_files_only=True)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _width(model: Any) -> int:
    """Of the encoder's tokens."""
    return getattr(model.config, "qformer_config", model.config).hidden_size


class FrozenTokens(nn.Module):
    """Tokens of a frozen transformers encoder; padding where the ids are the tokenizer's.

    Args:
        model: takes pictures, or ids and an attention mask.
        pad_id: of text; None for pictures.
    """

    def __init__(self, model: nn.Module, pad_id: int | None = None) -> None:
        super().__init__()
        self.model, self.pad_id = model.requires_grad_(False), pad_id

    def train(self, mode: bool = True) -> "FrozenTokens":
        """Frozen encoders stay in evaluation mode: no dropout."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Token embeddings, and True where there is none."""
        if self.pad_id is None:
            tokens = self.model(pixel_values=x).last_hidden_state
            padding = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=x.device)
        else:
            padding = x == self.pad_id
            mask = (~padding).long()
            tokens = self.model(input_ids=x, attention_mask=mask).last_hidden_state
        return {"token_embeddings": tokens, "attention_mask": padding}


class PooledTokens(nn.Module):
    """The mean of the real tokens, for methods without fusion."""

    def __init__(self, tokens: FrozenTokens) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        """Mean over the tokens that are there."""
        found = self.tokens(x)
        there = (~found["attention_mask"]).unsqueeze(-1)
        return (found["token_embeddings"] * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)


class FrozenArchitecture(Architecture):
    """The same frozen encoders for all arms: pooled for the baselines, whole for CoMM."""

    def fused(self) -> MultimodalEncoder:
        """The frozen encoders under a fusion transformer of one layer."""
        fusion = FusionTransformer(self.width, self.heads)
        whole: list[nn.Module] = [e.tokens for e in self.encoders]  # type: ignore[misc]
        return MultimodalEncoder(whole, [None] * len(whole), fusion)


@dataclass
class Movies(Contrastive):
    """Weighted and macro F1 of 23 genres.

    Args:
        folder: of MM-IMDb, with `split.json` and `dataset/<id>.json` and `.jpeg`.
        vision, text: make the encoders; the second with its tokenizer.
        tokens: longest plot in tokens.
        mask_rate: share of the plot's tokens that the augmentation masks.
    """

    folder: str | None = None
    vision: Callable[[], nn.Module] = clip_vision
    text: Callable[[], Any] = sentence_encoder
    tokens: int = 128
    mask_rate: float = 0.15

    def prepare(self) -> None:
        """Looks for the files, and fetches the encoders."""
        super().prepare()
        if self.folder is None or not (Path(self.folder) / "split.json").is_file():
            raise UserError(
                "settings.mmimdb must name the folder of MM-IMDb, with split.json and dataset/, "
                f"got {self.folder!r}"
            )
        self.vision()
        self.text()

    @cached_property
    def encoders(self) -> tuple[nn.Module, nn.Module, Any]:
        """Picture encoder, text encoder, tokenizer: loaded once, frozen."""
        return (self.vision(), *self.text())

    def films(self, split: str) -> tuple[list[str], Tensor, Tensor]:
        """Numbers of the films, ids of their plots (first outline), and their genres."""
        root, tokenizer = Path(self.folder or ""), self.encoders[2]
        numbers = [str(n) for n in json.loads((root / "split.json").read_text())[split]]
        plots, genres = [], torch.zeros(len(numbers), len(GENRES), dtype=torch.long)
        for row, number in enumerate(numbers):
            file = root / "dataset" / f"{number}.json"
            if not file.is_file():
                raise UserError(f"split.json names the film {number}, but there is no {file}")
            film = json.loads(file.read_text())
            plots.append(film["plot"] if isinstance(film["plot"], str) else film["plot"][0])
            for genre in {g.lower() for g in film["genres"]} & set(GENRES):
                genres[row, GENRES.index(genre)] = 1
        ids = tokenizer(
            plots, max_length=self.tokens, truncation=True, padding="max_length",
            return_tensors="pt",
        )["input_ids"]  # fmt: skip
        return numbers, ids, genres

    def posters(self, numbers: Sequence[str], side: int = 224) -> Tensor:
        """Pictures in [0, 1], the shorter side resized, the middle cut out."""
        from PIL import Image, ImageOps

        out = torch.empty(len(numbers), 3, side, side)
        for row, number in enumerate(numbers):
            with Image.open(Path(self.folder or "") / "dataset" / f"{number}.jpeg") as image:
                fitted = ImageOps.fit(image.convert("RGB"), (side, side))
            out[row] = torch.from_numpy(np.array(fitted)).permute(2, 0, 1) / 255
        return out

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Both F1 scores of a probe on the test films."""
        vision, text, tokenizer = self.encoders
        numbers, ids, genres = self.films("train")

        def architecture() -> Architecture:
            parts: list[nn.Module] = [
                PooledTokens(FrozenTokens(vision)),
                PooledTokens(FrozenTokens(text, tokenizer.pad_token_id)),
            ]
            widths = [_width(vision), _width(text)]
            if len(set(widths)) > 1:
                raise UserError(f"both encoders must have one width, got {widths}")
            return FrozenArchitecture(parts, [None, None], widths, widths[0])  # type: ignore

        def batch(number: int, size: int) -> tuple[list[Tensor], Tensor]:
            rows = rows_of_batch(len(numbers), size, number, cell.seed)
            return [self.posters([numbers[int(r)] for r in rows]), ids[rows]], genres[rows]

        special = [tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id]
        augment = Augmentations(
            [
                ImageAugmentation(RandomResizedCrop((0.08, 1.0)), normalize=_NORMALIZE),
                TokenMasking(tokenizer.mask_token_id, special, self.mask_rate),
            ]
        )
        model = self.train(
            arm, architecture, batch, augment, cell, context, len(GENRES), multilabel=True
        )
        tested, test_ids, test_genres = self.films("test")
        mean, deviation = (torch.tensor(v)[:, None, None] for v in _NORMALIZE)

        def embedded(numbers: list[str], ids: Tensor) -> Tensor:
            def load(rows: Tensor) -> list[Tensor]:
                pictures = self.posters([numbers[int(r)] for r in rows])
                return [(pictures - mean) / deviation, ids[rows]]

            found = self.embed(model, [torch.arange(len(numbers))], 128, load=load)
            return next(iter(found.values()))

        pair = (embedded(numbers, ids), genres), (embedded(tested, test_ids), test_genres)
        predictions = self.probe_label(*pair).predictions
        for metric in ("f1_weighted", "f1_macro"):
            yield Measurement(metric, score(predictions, test_genres, metric), "%")  # type: ignore
