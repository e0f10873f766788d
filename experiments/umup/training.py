"""Language models under one training recipe for every parametrisation."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from ritornello.common.errors import UserError
from ritornello.common.training.fit import fit
from ritornello.common.training.schedule import cosine_with_warmup
from ritornello.experiments.umup.corpus import BYTES, Corpus
from ritornello.methods.umup import DecoderConfig, DecoderLM, Fp8Cast
from ritornello.methods.umup.parametrization import Parametrization

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

Fp8 = Literal["none", "simulated", "hardware"]
MOST_TOKENS = 2**14  # of a forward pass outside training: the logits of 32,000 words take 2 GB


@dataclass(frozen=True)
class Arm:
    """A parametrisation with what the recipe leaves to it.

    Args:
        parametrization: SP, muP or u-muP.
        log2_rates: learning rates to try, as powers of two.
        clip_norm: gradient clipping; None for u-muP, whose gradients are unit-scaled.
        fp8: matrix products in FP8, by rounding ("simulated") or on the FP8 units of a GPU.
        log2_rate: the one rate of parts that do not sweep it.
    """

    parametrization: Parametrization
    log2_rates: tuple[float, ...]
    clip_norm: float | None
    log2_rate: float
    fp8: Fp8 = "none"

    def __post_init__(self) -> None:
        if self.fp8 not in get_args(Fp8):
            raise UserError(f"fp8 must be one of {get_args(Fp8)}, got {self.fp8!r}")


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
        vocabulary: number of tokens; 256 for bytes.
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
    vocabulary: int = 256

    def __post_init__(self) -> None:
        for name in ("width", "layers", "head_dim", "batch", "tokens", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.head_dim:
            raise UserError(f"width={self.width} must be a multiple of head_dim={self.head_dim}")
        if not 0 <= self.warmup_steps <= self.steps:
            raise UserError(f"warmup_steps={self.warmup_steps} must lie in 0..steps={self.steps}")

    @property
    def model(self) -> DecoderConfig:
        """Sizes of the model."""
        return DecoderConfig(
            self.vocabulary,
            self.width,
            self.layers,
            self.width // self.head_dim,
            hidden=int(self.ffn_ratio * self.width),
        )

    @property
    def unit(self) -> str:
        """Of losses."""
        return "nats/byte" if self.vocabulary == BYTES else "nats/token"


def build(arm: Arm, recipe: Recipe, seed: int) -> DecoderLM:
    """The initial model of a seed."""
    generator = torch.Generator().manual_seed(seed)
    model = DecoderLM(recipe.model, arm.parametrization, generator=generator)
    if arm.fp8 != "none":
        Fp8Cast(hardware=arm.fp8 == "hardware").attach(model)
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
        watch: called with step and model when a step's gradients are complete.
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
        accelerator="gpu" if recipe.device.startswith("cuda") else "cpu",
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
            # in a buffer, so that a resumed run goes on counting
            self.register_buffer("step_number", torch.zeros((), dtype=torch.long))

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

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            if watch is not None:
                watch(int(self.step_number), model)
            self.step_number += 1

    return LanguageModel()


@torch.no_grad()
def validation_loss(model: DecoderLM, corpus: Corpus, recipe: Recipe) -> float:
    """Mean held-out cross entropy in nats per token; nan where training diverged."""
    model.to(recipe.device).eval()  # Lightning leaves it on the CPU
    total = 0.0
    at_once = min(64, max(1, MOST_TOKENS // recipe.tokens))
    for chunk in corpus.held_out(recipe.validation_windows).to(recipe.device).split(at_once):
        loss = model.loss(chunk[:, :-1], chunk[:, 1:])
        total += float(loss) * len(chunk)
    model.train()
    value = total / recipe.validation_windows
    return value if math.isfinite(value) else math.nan
