"""Byte-level language models under one training recipe for every parametrisation."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from ritornello.common.errors import UserError
from ritornello.common.training.fit import fit
from ritornello.common.training.schedule import cosine_with_warmup
from ritornello.methods.umup import DecoderConfig, DecoderLM, Fp8Cast
from ritornello.methods.umup.parametrization import Parametrization

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

BYTES = 256


@dataclass(frozen=True)
class Arm:
    """A parametrisation with what the recipe leaves to it.

    Args:
        parametrization: SP, muP or u-muP.
        log2_rates: learning rates to try, as powers of two.
        clip_norm: gradient clipping; None for u-muP, whose gradients are unit-scaled.
        fp8: simulate FP8 matrix products.
        log2_rate: the one rate of parts that do not sweep it.
    """

    parametrization: Parametrization
    log2_rates: tuple[float, ...]
    clip_norm: float | None
    log2_rate: float
    fp8: bool = False


@dataclass(frozen=True)
class Recipe:
    """Sizes and schedule of one training run.

    Args:
        width: of the model.
        layers: of the model.
        head_dim: of the model; heads = width / head_dim.
        ffn_ratio: feed-forward width over width.
        batch: windows per step.
        tokens: length of a window.
        steps: optimiser steps.
        warmup_steps: linear warm-up.
        final_ratio: of the peak rate at the end of the cosine.
        weight_decay: independent: share lost per step at the peak.
        validation_windows: held-out windows.
        checkpoint_every: steps between checkpoints; 0 for runs of seconds.
        device: "cpu" or "cuda".
    """

    width: int
    layers: int
    head_dim: int
    ffn_ratio: float
    batch: int
    tokens: int
    steps: int
    warmup_steps: int
    final_ratio: float
    weight_decay: float
    validation_windows: int
    checkpoint_every: int
    device: str

    @property
    def model(self) -> DecoderConfig:
        return DecoderConfig(
            BYTES,
            self.width,
            self.layers,
            self.width // self.head_dim,
            hidden=int(self.ffn_ratio * self.width),
        )


class Corpus:
    """A text as bytes, the last tenth held out."""

    def __init__(self, text: str, tokens: int) -> None:
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        cut = len(data) * 9 // 10
        self.train, self.validation, self.tokens = data[:cut], data[cut:], tokens
        if len(self.validation) <= tokens + 1:
            raise UserError(f"the text has {len(data)} bytes, too few for windows of {tokens}")

    def batch(self, seed: int, step: int, windows: int) -> Int[Tensor, "windows tokens+1"]:
        """Training windows of a step, a function of seed and step alone."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        starts = torch.randint(len(self.train) - self.tokens - 1, (windows,), generator=generator)
        return self.train[starts[:, None] + torch.arange(self.tokens + 1)]

    def held_out(self, windows: int) -> Int[Tensor, "windows tokens+1"]:
        """The same evenly spaced held-out windows for everyone."""
        starts = torch.linspace(0, len(self.validation) - self.tokens - 1, windows).long()
        return self.validation[starts[:, None] + torch.arange(self.tokens + 1)]


def build(arm: Arm, recipe: Recipe, seed: int) -> DecoderLM:
    """The initial model of a seed."""
    generator = torch.Generator().manual_seed(seed)
    model = DecoderLM(recipe.model, arm.parametrization, generator=generator)
    if arm.fp8:
        Fp8Cast().attach(model)
    return model


def train(
    model: DecoderLM,
    arm: Arm,
    recipe: Recipe,
    corpus: Corpus,
    *,
    rate: float,
    seed: int,
    scratch: Path | None = None,
    watch: Callable[[int, DecoderLM], None] | None = None,
) -> list[float]:
    """Trains in place and gives the loss of every step.

    Args:
        rate: peak learning rate.
        scratch: folder of checkpoints.
        watch: called with step and model after each backward pass.
    """
    module = _module(model, arm, recipe, rate, watch)
    return fit(
        module,
        lambda step: corpus.batch(seed, step, recipe.batch),
        steps=recipe.steps,
        seed=seed,
        scratch=scratch,
        checkpoint_every=recipe.checkpoint_every,
        clip_norm=arm.clip_norm,
        accelerator="gpu" if recipe.device == "cuda" else "cpu",
    ).losses


def _module(
    model: DecoderLM,
    arm: Arm,
    recipe: Recipe,
    rate: float,
    watch: Callable[[int, DecoderLM], None] | None,
) -> "LightningModule":
    from lightning.pytorch import LightningModule

    class LanguageModel(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.model.loss(batch[:, :-1], batch[:, 1:])

        def configure_optimizers(self) -> dict:
            groups = arm.parametrization.param_groups(model, rate, recipe.weight_decay)
            optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), fused=True)
            schedule = cosine_with_warmup(
                optimizer,
                steps=recipe.steps,
                warmup_steps=recipe.warmup_steps,
                final_ratio=recipe.final_ratio,
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"},
            }

        def on_after_backward(self) -> None:
            if watch is not None:
                watch(self.global_step, model)

    return LanguageModel()


@torch.no_grad()
def validation_loss(model: DecoderLM, corpus: Corpus, recipe: Recipe) -> float:
    """Mean held-out cross entropy in nats per byte; nan where training diverged."""
    model.eval()
    device = next(model.parameters()).device
    total = 0.0
    chunks = corpus.held_out(recipe.validation_windows).split(64)
    for chunk in chunks:
        loss = model.loss(chunk[:, :-1].to(device), chunk[:, 1:].to(device))
        total += float(loss) * len(chunk)
    model.train()
    value = total / recipe.validation_windows
    return value if math.isfinite(value) else math.nan


def wikitext103(split: str = "train", path: str | None = None) -> str:
    """WikiText-103 as one text: a local file or folder, or the hub set `Salesforce/wikitext`.

    Raises:
        UserError: no such file, or no network.
    """
    from ritornello.common.data.text import wikitext2

    if path is not None:
        return wikitext2(split, path)  # reads any local text or folder of splits
    import pandas as pd

    from ritornello.common.models.hub import hub_snapshot

    folder = hub_snapshot("Salesforce/wikitext", repo_type="dataset") / "wikitext-103-raw-v1"
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise UserError(f"split must be train, validation or test, got {split!r}")
    return "\n\n".join(pd.concat([pd.read_parquet(file) for file in files])["text"])
