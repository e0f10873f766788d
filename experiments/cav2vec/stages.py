"""The three stages: a clean start, uptraining on corrupted speech, fine-tuning for recognition."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from ritornello.common.cache import cached_directory
from ritornello.common.runs import UserError
from ritornello.common.training import fit
from ritornello.experiments.cav2vec.data import SpeechData, finetuning_mixer, training_mixer
from ritornello.methods.cav2vec import (
    AVForCTC,
    AVForSpeechSeq2Seq,
    AVHubertConfig,
    AVHubertModel,
    CAV2vecForPreTraining,
    PretrainingConfig,
    RecognizerConfig,
)
from ritornello.methods.cav2vec.checkpoint import encoder_sizes, read_fairseq
from ritornello.methods.cav2vec.data import LabelledBatches, UptrainingBatches
from ritornello.methods.cav2vec.training import Schedule, finetuning_module, uptraining_module

_SOURCES = (
    "ritornello.methods.cav2vec",
    "ritornello.common.data.speech",
    "ritornello.experiments.cav2vec",
)
_SIZES = (
    "embed_dim",
    "ffn_dim",
    "num_layers",
    "num_heads",
    "pos_conv_kernel",
    "pos_conv_groups",
    "layer_norm_first",
    "audio_dim",
    "frontend_widths",
)


@dataclass(frozen=True)
class Recipe:
    """An arm: what uptraining predicts.

    Args:
        tasks: see `methods.cav2vec.tasks.TASK_NAMES`; none: no uptraining at all.
        start: from the clean start, or (False) from random weights.
        fusion: ``concat``, or ``reliability`` (AV-RelScore).
    """

    tasks: Sequence[str] = ()
    start: bool = True
    fusion: str = "concat"

    def __post_init__(self) -> None:
        if self.tasks:
            PretrainingConfig(tasks=tuple(self.tasks))
        AVHubertConfig(fusion=self.fusion)


def _arm(recipe: Recipe, seed: int) -> dict[str, Any]:
    """What tells the arms' models apart: part of their key, and written beside them."""
    return asdict(recipe) | {"tasks": list(recipe.tasks), "seed": seed}


@dataclass(frozen=True)
class Stage:
    """Length and learning rate of one stage.

    Args:
        steps: optimiser steps.
        batch_size: clips a batch; null where `batch_frames` is given.
        learning_rate: peak.
        max_frames: longest window.
        warmup_share: share of the steps with rising learning rate.
        batch_frames: frames a batch, of clips of like length.
    """

    steps: int
    batch_size: int | None
    learning_rate: float
    max_frames: int = 400
    warmup_share: float = 0.08
    batch_frames: int | None = None

    @property
    def warmup_steps(self) -> int:
        """Steps with rising learning rate."""
        return round(self.steps * self.warmup_share)


@dataclass
class Stages:
    """Builds models for an experiment; what has been trained once is kept in the cache folder.

    Args:
        encoder: arguments of `AVHubertConfig`.
        objective: further arguments of `PretrainingConfig`.
        first: the clean start (masked language model only); unused with a checkpoint.
        uptraining: the stage the paper is about.
        finetuning: recognition.
        head: ``ctc`` or ``seq2seq``.
        decoder: further arguments of `RecognizerConfig`.
        finetuning_encoder: arguments of `AVHubertConfig` that fine-tuning changes.
        frozen_share: share of fine-tuning during which the encoder stands still.
        checkpoint: a published AV-HuBERT file to start from instead of `first`.
        checkpoint_every: steps between training checkpoints.
        device: where it is trained.
        trainer: what `trainer=…` chose (devices, strategy, precision, accumulate).
        loader_workers: processes that make batches ahead.
    """

    encoder: dict[str, Any]
    objective: dict[str, Any]
    first: Stage | None
    uptraining: Stage
    finetuning: Stage
    head: str = "ctc"
    decoder: dict[str, Any] = field(default_factory=dict)
    finetuning_encoder: dict[str, Any] = field(default_factory=dict)
    frozen_share: float = 0.0
    checkpoint: str | None = None
    checkpoint_every: int = 0
    device: str = "cpu"
    trainer: dict[str, Any] = field(default_factory=dict)
    loader_workers: int = 0

    def __post_init__(self) -> None:
        if self.head not in ("ctc", "seq2seq"):
            raise ValueError(f"head must be 'ctc' or 'seq2seq', got {self.head!r}")
        if (self.first is None) == (self.checkpoint is None):
            raise UserError("give either stages.first (a start trained here) or stages.checkpoint")
        encoder = AVHubertConfig(**self.encoder)
        PretrainingConfig(encoder, **self.objective)
        skipping = encoder.layerdrop, replace(encoder, **self.finetuning_encoder).layerdrop
        if self.trainer.get("strategy") == "fully_shard" and any(skipping):
            raise UserError(
                "trainer=fsdp needs layerdrop=0 in stages.encoder and stages.finetuning_encoder, "
                f"got {skipping[0]} and {skipping[1]}: its processes cannot skip different layers"
            )

    def check_files(self) -> None:
        """Raises a UserError when the checkpoint to start from is missing or of another size."""
        if self.checkpoint is None:
            return
        place = "stages.checkpoint must be a published AV-HuBERT file (large_vox_iter5.pt)"
        try:
            found = AVHubertConfig(**encoder_sizes(read_fairseq(self.checkpoint)))
        except (ValueError, UnpicklingError) as error:
            raise UserError(f"{place}, got {self.checkpoint!r}: {error}") from error
        wanted = AVHubertConfig(**self.encoder)
        wrong = [
            f"{name}={getattr(wanted, name)} ({getattr(found, name)} in the file)"
            for name in _SIZES
            if getattr(wanted, name) != getattr(found, name)
        ]
        if wrong:
            raise UserError(f"stages.encoder must be as stages.checkpoint, got {', '.join(wrong)}")

    def _digest(self, *keys: Any) -> str:
        """Of everything that decides an uptrained model, the source included."""
        decides = (self.encoder, self.objective, self.first, self.checkpoint, self.trainer)
        text = json.dumps([*decides, *keys], sort_keys=True, default=repr)
        digest = hashlib.sha256(text.encode())
        for package in _SOURCES:
            for file in sorted(files(package).iterdir(), key=lambda f: f.name):
                if file.name.endswith(".py"):
                    digest.update(file.read_bytes())
        return digest.hexdigest()[:16]

    def _fit(self, module: Any, batch: Callable[[int], Any], stage: Stage, **settings: Any) -> None:
        accelerator = {"accelerator": "gpu"} if self.device.startswith("cuda") else {}
        fit(
            module,
            batch,
            steps=stage.steps,
            clip_norm=10.0,
            checkpoint_every=self.checkpoint_every,
            loader_workers=self.loader_workers,
            **{**accelerator, **self.trainer, **settings},
        )

    def _new(
        self, data: SpeechData, recipe: Recipe, seed: int, steps: int
    ) -> CAV2vecForPreTraining:
        torch.manual_seed(seed)
        classes = 1 + max(int(labels.max()) for labels in data.labels)
        return CAV2vecForPreTraining(
            PretrainingConfig(
                encoder=AVHubertConfig(**self.encoder, fusion=recipe.fusion),
                num_classes=classes,
                tasks=tuple(recipe.tasks) or ("mlm",),
                ema_steps=max(steps, 1),
                **self.objective,
            )
        )

    def _uptrain(
        self,
        model: CAV2vecForPreTraining,
        data: SpeechData,
        stage: Stage,
        seed: int,
        scratch: Path | None = None,
        *,
        corrupt: bool = True,
    ) -> list[dict[str, float]]:
        """Trains in place, on corrupted or on clean speech; the losses by step."""
        batches = UptrainingBatches(
            data.train,
            training_mixer(data) if corrupt else None,
            data.occluders("train")["object"] if corrupt else None,
            model.encoder_config.image_size,
            stage.batch_size,
            stage.max_frames,
            data.labels,
            seed,
            stage.batch_frames,
        )
        schedule = Schedule(stage.steps, stage.learning_rate, stage.warmup_steps)
        history: list[dict[str, float]] = []
        module = uptraining_module(model, schedule, history=history)
        self._fit(module, batches, stage, seed=seed, scratch=scratch)
        return history

    def start(self, data: SpeechData, seed: int) -> CAV2vecForPreTraining:
        """The clean start: the published checkpoint, or one trained here on clean speech."""
        if self.checkpoint is not None:
            classes = 1 + max(int(labels.max()) for labels in data.labels)
            return CAV2vecForPreTraining.from_fairseq(
                self.checkpoint, num_classes=classes, tasks=("mlm",), **self.objective
            )
        stage = self.first
        assert stage is not None

        def build(folder: Path) -> None:
            model = self._new(data, Recipe(("mlm",)), seed, stage.steps)
            self._uptrain(model, data, stage, seed, corrupt=False)
            model.save_pretrained(folder)

        name = f"cav2vec/start-{self._digest(repr(data), seed)}"
        return CAV2vecForPreTraining.from_pretrained(cached_directory(name, build))

    def uptrained(
        self, data: SpeechData, recipe: Recipe, seed: int, scratch: Path | None = None
    ) -> CAV2vecForPreTraining:
        """The arm's model after uptraining; `losses.json` lies beside it in the cache."""
        folder = self.uptrained_folder(data, recipe, seed, scratch)
        return CAV2vecForPreTraining.from_pretrained(folder)

    def uptrained_folder(
        self, data: SpeechData, recipe: Recipe, seed: int, scratch: Path | None = None
    ) -> Path:
        """The folder of that model."""
        stage, arm = self.uptraining, _arm(recipe, seed)

        def build(folder: Path) -> None:
            model = self._new(data, recipe, seed, stage.steps)
            if recipe.start:
                before = self.start(data, seed).state_dict()
                known = {k: v for k, v in before.items() if not k.startswith("teacher.")}
                model.load_state_dict(known, strict=False)
                if model.teacher is not None:
                    model.reset_teacher()
            history = self._uptrain(model, data, stage, seed, scratch) if recipe.tasks else []
            model.save_pretrained(folder)
            (folder / "losses.json").write_text(json.dumps(history))
            (folder / "arm.json").write_text(json.dumps(arm))

        digest = self._digest(repr(data), repr(stage), arm)
        return cached_directory(f"cav2vec/uptrained-{digest}", build)

    def recognizer(
        self, data: SpeechData, recipe: Recipe, seed: int, scratch: Path
    ) -> AVForCTC | AVForSpeechSeq2Seq:
        """The arm's recogniser, fine-tuned after uptraining; kept in the cache as well."""
        kind, arm = AVForCTC if self.head == "ctc" else AVForSpeechSeq2Seq, _arm(recipe, seed)

        def build(folder: Path) -> None:
            encoder = self.uptrained(data, recipe, seed, scratch / "uptraining")
            model = self._finetuned(kind, data, encoder, seed, scratch / "finetuning")
            model.save_pretrained(folder)
            (folder / "arm.json").write_text(json.dumps(arm))

        stages = [repr(self.uptraining), repr(self.finetuning), self.frozen_share]
        model = [self.head, self.decoder, self.finetuning_encoder]
        digest = self._digest(repr(data), *stages, *model, arm)
        folder = cached_directory(f"cav2vec/recognizer-{digest}", build)
        return kind.from_pretrained(folder).to(self.device)

    def _finetuned(
        self,
        kind: type[AVForCTC | AVForSpeechSeq2Seq],
        data: SpeechData,
        encoder: AVHubertModel,
        seed: int,
        scratch: Path,
    ) -> AVForCTC | AVForSpeechSeq2Seq:
        """Fine-tunes on corrupted labelled speech."""
        stage = self.finetuning
        torch.manual_seed(seed)
        sizes = replace(encoder.encoder_config, **self.finetuning_encoder)
        model = kind(RecognizerConfig(len(data.tokenizer), encoder=sizes, **self.decoder))
        model.load_encoder(encoder)
        batches = LabelledBatches(
            data.finetuning,
            data.tokenizer,
            finetuning_mixer(data),
            data.occluders("train")["object"],
            encoder.encoder_config.image_size,
            stage.batch_size,
            seed=seed,
            batch_frames=stage.batch_frames,
        )
        schedule = Schedule.finetuning(
            steps=stage.steps,
            learning_rate=stage.learning_rate,
            warmup_steps=stage.warmup_steps,
            frozen_steps=round(self.frozen_share * stage.steps),
        )
        self._fit(finetuning_module(model, schedule), batches, stage, seed=seed, scratch=scratch)
        return model
