"""The tasks of corrupted prediction and the settings of a pretraining run (sec. 3)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ritornello.methods.cav2vec.encoder import AVHubertConfig
from ritornello.methods.cav2vec.teacher import TargetNorm

Mode = Literal["av", "audio_dropped", "video_dropped"]
MODES: tuple[Mode, ...] = ("av", "audio_dropped", "video_dropped")


class Task(NamedTuple):
    """One regression: which head predicts which teacher target on which frames, in which mode."""

    name: str
    mode: Mode
    head: str
    target: Literal["av", "audio", "video"]
    frames: Literal["masked", "masked_audio", "masked_video", "audio", "video", "either"]


# The paper's tasks. "audio", "video", "either": corrupted there, and not masked.
TASKS = (
    Task("mp", "av", "final_pred_proj", "av", "masked"),
    Task("mp", "audio_dropped", "final_pred_proj", "av", "masked_video"),
    Task("mp", "video_dropped", "final_pred_proj", "av", "masked_audio"),
    Task("acp", "audio_dropped", "final_pred_proj_uasp", "audio", "video"),
    Task("vcp", "video_dropped", "final_pred_proj_uvsp", "video", "audio"),
    Task("avcp", "av", "final_pred_proj", "av", "either"),
    Task("macp", "av", "final_pred_proj_asp", "audio", "video"),
    Task("mvcp", "av", "final_pred_proj_vsp", "video", "audio"),
)
TASK_NAMES = ("mlm", "mp", "acp", "vcp", "avcp", "macp", "mvcp")
HEADS = tuple(dict.fromkeys(task.head for task in TASKS))


@dataclass(frozen=True)
class PretrainingConfig:
    """What one step predicts.

    Args:
        encoder: sizes of the student.
        num_classes: k-means classes of the masked language model.
        tasks: any of `TASK_NAMES`; see `baselines.TASK_SETS`.
        distill_weight: factor on every regression.
        feature_penalty: factor on the mean squared features before fusion's norm.
        final_dim: width in which frames and classes are compared.
        logit_temperature: divides the cosines.
        top_k: teacher layers averaged.
        target_norm: normalisation of teacher layers.
        target_statistics: ``valid`` leaves padding out of the norm over time; ``all`` counts it, as
            the official code does.
        teacher_batch_norm: ``update`` lets clean batches move the front-end's running statistics
            too, as in the official code; ``eval`` uses them without moving them.
        ema_decay: teacher decay at the first and last step.
        ema_steps: steps of that schedule.
        audio_span: (probability, length) of masked audio spans.
        video_span: the same for video.
        modality_dropout: chance that a batch loses a modality.
        audio_dropout: chance that the lost one is the audio.
    """

    encoder: AVHubertConfig = field(default_factory=AVHubertConfig)
    num_classes: int = 2000
    tasks: Sequence[str] = ("mlm", "mp", "acp", "vcp")
    distill_weight: float = 0.5
    feature_penalty: float = 10.0
    final_dim: int = 256
    logit_temperature: float = 0.1
    top_k: int = 8
    target_norm: TargetNorm = "instance"
    target_statistics: Literal["valid", "all"] = "valid"
    teacher_batch_norm: Literal["update", "eval"] = "update"
    ema_decay: tuple[float, float] = (0.999, 0.9999)
    ema_steps: int = 60_000
    audio_span: tuple[float, int] = (0.8, 10)
    video_span: tuple[float, int] = (0.3, 5)
    modality_dropout: float = 0.5
    audio_dropout: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.encoder, dict):
            object.__setattr__(self, "encoder", AVHubertConfig(**self.encoder))
        for name in ("tasks", "ema_decay", "audio_span", "video_span"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        unknown = [task for task in self.tasks if task not in TASK_NAMES]
        if unknown or not self.tasks:
            raise ValueError(f"tasks must be taken from {TASK_NAMES}, got {tuple(self.tasks)}")
        if not 1 <= self.top_k <= self.encoder.num_layers:
            raise ValueError(
                f"top_k must lie in [1, num_layers={self.encoder.num_layers}], got {self.top_k}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to ``config.json``."""
        return asdict(self)
