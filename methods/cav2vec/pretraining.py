"""Corrupted prediction: the student, its tasks and the loss of one step (sec. 3)."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.cav2vec.checkpoint import load_named, read_fairseq
from ritornello.methods.cav2vec.encoder import AVHubertModel
from ritornello.methods.cav2vec.masking import (
    Masks,
    RandomSource,
    draw_masks,
    mask_audio,
    mask_video,
)
from ritornello.methods.cav2vec.tasks import HEADS, MODES, TASKS, Mode, PretrainingConfig
from ritornello.methods.cav2vec.teacher import EMATeacher, distillation_targets

_LABEL_TOLERANCE = 2  # frames: labels may be up to 0.1 s shorter or longer than the clip


class AVBatch(NamedTuple):
    """One batch of uptraining; audio is (B, 104, T), video (B, 1, T, H, W), flags (B, T).

    `padding_mask` is True at padding; `labels` are k-means classes (B, T).
    """

    audio: Tensor
    video: Tensor
    clean_audio: Tensor
    clean_video: Tensor
    audio_corrupted: Tensor
    video_corrupted: Tensor
    labels: Tensor | None = None
    padding_mask: Tensor | None = None

    def to(self, device: torch.device | str) -> "AVBatch":
        """The batch on another device."""
        moved: list[Any] = [x if x is None else x.to(device) for x in self]
        return AVBatch(*moved)


class CAV2vecOutput(NamedTuple):
    """`loss` is to be minimised (the total over `n_frames`); `losses` are sums before weights.

    `counts` holds the frames every loss was summed over.
    """

    loss: Tensor
    total: Tensor
    losses: dict[str, Tensor]
    counts: dict[str, int]
    n_frames: int
    mode: Mode
    hidden: Tensor
    masks: Masks


class CAV2vecForPreTraining(AVHubertModel):
    """AV-HuBERT with the heads and the teacher of CAV2vec.

    With ``tasks=("mlm",)`` this is AV-HuBERT, with ``("mlm", "mp")`` AV2vec; see
    `baselines.TASK_SETS`.
    """

    config_class = PretrainingConfig

    def __init__(self, config: PretrainingConfig) -> None:
        super().__init__(config.encoder)
        self.config = config
        dim = config.encoder.embed_dim
        self.label_embs_concat = nn.Parameter(torch.rand(config.num_classes, config.final_dim))
        self.final_proj = nn.Linear(dim, config.final_dim)
        for head in HEADS:
            setattr(self, head, nn.Linear(dim, dim))
        self.active = tuple(task for task in TASKS if task.name in config.tasks)
        self.teacher: EMATeacher | None = None
        if self.active:
            self.reset_teacher()

    def reset_teacher(self) -> None:
        """Makes the teacher a copy of the student: at the start, or after loading a checkpoint."""
        self.teacher = EMATeacher(self.encoder, self.config.ema_decay, self.config.ema_steps)

    @classmethod
    def from_fairseq(
        cls, source: Any, *, num_heads: int | None = None, **changes: Any
    ) -> "CAV2vecForPreTraining":
        """Starts from a published file: its encoder, and every head that has the same shape.

        Args:
            source: path or bytes of an AV-HuBERT or CAV2vec checkpoint.
            num_heads: attention heads of the encoder, for a file that does not say it.
            changes: arguments of `PretrainingConfig` (``num_classes`` for other labels).
        """
        checkpoint = read_fairseq(source)
        encoder = AVHubertModel.from_fairseq(
            checkpoint, **({} if num_heads is None else {"num_heads": num_heads})
        )
        own = checkpoint.backbone.get("label_embs_concat")
        known: dict[str, Any] = (
            {} if own is None else {"num_classes": len(own), "final_dim": own.shape[1]}
        )
        model = cls(PretrainingConfig(encoder=encoder.config, **(known | changes)))
        state = model.state_dict()
        fits = {
            k: v for k, v in checkpoint.backbone.items() if k in state and v.shape == state[k].shape
        }
        model.load_state_dict(encoder.state_dict() | fits, strict=False)
        if model.teacher is not None:
            model.reset_teacher()
            if checkpoint.teacher:
                load_named(model.teacher.module, checkpoint.teacher, source="the teacher's weights")
        return model

    def update_teacher(self) -> None:
        """Moves the teacher towards the student; call it after every optimiser step."""
        if self.teacher is not None:
            self.teacher.update(self.encoder)

    def draw_mode(self, generator: RandomSource) -> Mode:
        """One draw a batch: AV ½, audio dropped ¼, video dropped ¼; always AV in eval mode."""
        if not self.training or generator.random() >= self.config.modality_dropout:
            return "av"
        return (
            "audio_dropped" if generator.random() < self.config.audio_dropout else "video_dropped"
        )

    def _student(self, batch: AVBatch, masks: Masks, mode: Mode) -> tuple[Tensor, Tensor]:
        """Final hidden states and mean squared features of the masked, corrupted input.

        A dropped front-end runs without gradients: only its batch statistics move.
        """
        zeros = len(batch.audio) == 1
        audio = mask_audio(batch.audio, masks.audio, self.mask_emb, with_zeros=zeros)
        video = mask_video(batch.video, masks.video_source)
        audio_features = video_features = None
        if mode != "audio_dropped":
            audio_features = self.scale_gradient(self.feature_extractor_audio(audio))
        if mode != "video_dropped":
            video_features = self.scale_gradient(self.feature_extractor_video(video))
        elif self.training:
            with torch.no_grad():
                self.feature_extractor_video.resnet(video)
        fused = self.fuse(audio_features, video_features)
        hidden = self.encode(fused, batch.padding_mask).last_hidden_state
        return hidden, fused.float().square().mean()

    @torch.no_grad()
    def targets(self, batch: AVBatch, kinds: Sequence[str]) -> dict[str, Tensor]:
        """Teacher targets of the clean input from [a;v] ("av"), [a;0] ("audio"), [0;v] ("video").

        The front-ends, the norm and the projection are the student's own, as they stand.
        """
        frozen = self.config.teacher_batch_norm == "eval" and self.training
        if frozen:
            self.feature_extractor_video.eval()
        audio = self.feature_extractor_audio(batch.clean_audio)
        video = self.feature_extractor_video(batch.clean_video, batch.padding_mask)
        if frozen:
            self.feature_extractor_video.train()
        inputs = {"av": (audio, video), "audio": (audio, None), "video": (None, video)}
        projected = torch.cat([self.project(self.fuse(*inputs[kind])) for kind in kinds])
        padding = batch.padding_mask
        repeated = None if padding is None else padding.repeat(len(kinds), 1)
        assert self.teacher is not None
        outputs = self.teacher(projected.to(torch.float32), repeated).ffn_outputs
        averaged = distillation_targets(
            outputs,
            top_k=self.config.top_k,
            norm=self.config.target_norm,
            padding_mask=repeated if self.config.target_statistics == "valid" else None,
        )
        return dict(zip(kinds, averaged.chunk(len(kinds)), strict=True))

    def _regressions(
        self, batch: AVBatch, masks: Masks, mode: Mode, hidden: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, int]]:
        tasks = [task for task in self.active if task.mode == mode]
        if not tasks:
            return {}, {}
        masked = masks.audio | masks.video
        present = torch.ones_like(masked) if batch.padding_mask is None else ~batch.padding_mask
        corrupted_audio = batch.audio_corrupted & ~masked & present
        corrupted_video = batch.video_corrupted & ~masked & present
        frames = {
            "masked": masked,
            "masked_audio": masks.audio,
            "masked_video": masks.video,
            "audio": corrupted_audio,
            "video": corrupted_video,
            "either": corrupted_audio | corrupted_video,
        }
        targets = self.targets(batch, tuple(dict.fromkeys(task.target for task in tasks)))
        losses, counts = {}, {}
        for task in tasks:
            selected = frames[task.frames]
            predicted = getattr(self, task.head)(hidden[selected]).float()
            squared = (predicted - targets[task.target][selected]).square().sum()
            losses[task.name] = squared / hidden.shape[-1] ** 0.5
            counts[task.name] = int(selected.sum())
        return losses, counts

    def class_logits(self, hidden: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
        """Cosines between frames and class embeddings over the temperature."""
        frames = F.normalize(self.final_proj(hidden).float(), dim=-1)
        classes = F.normalize(self.label_embs_concat.float(), dim=-1)
        return frames @ classes.T / self.config.logit_temperature

    def _masked_language_model(
        self, labels: Int[Tensor, "batch time"], masks: Masks, present: Tensor, hidden: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, int]]:
        logits = self.class_logits(hidden[present])
        wanted = labels[present]
        masked = (masks.audio | masks.video)[present]
        entropy = F.cross_entropy(logits, wanted, reduction="none")
        hit = (logits.argmax(-1) == wanted).detach()
        losses = {"mlm_masked": entropy[masked].sum(), "mlm_unmasked": entropy[~masked].sum()}
        counts = {
            "mlm_masked": int(masked.sum()),
            "mlm_unmasked": int((~masked).sum()),
            "correct_masked": int(hit[masked].sum()),
            "correct_unmasked": int(hit[~masked].sum()),
        }
        return losses, counts

    def _fit_labels(self, batch: AVBatch) -> AVBatch:
        """Trims batch and labels to the shorter of the two."""
        if batch.labels is None:
            if "mlm" in self.config.tasks:
                raise ValueError(
                    "batch.labels is None: the task 'mlm' needs a class for every frame"
                )
            return batch
        frames, labelled = batch.audio.shape[2], batch.labels.shape[1]
        if frames == labelled:
            return batch
        if abs(frames - labelled) > _LABEL_TOLERANCE:
            raise ValueError(
                f"batch.labels must have {frames} frames (within {_LABEL_TOLERANCE}), "
                f"got {labelled}"
            )
        shortest = min(frames, labelled)
        along_two = ("audio", "video", "clean_audio", "clean_video")
        cut: dict[str, Any] = {
            name: value
            if value is None
            else value.narrow(2 if name in along_two else 1, 0, shortest)
            for name, value in batch._asdict().items()
        }
        return AVBatch(**cut)

    def forward(
        self,
        batch: AVBatch,
        masks: Masks | None = None,
        mode: Mode | Literal["auto"] = "auto",
        generator: RandomSource | None = None,
    ) -> CAV2vecOutput:
        """One step: masks, student, teacher and every active loss.

        Args:
            batch: corrupted and clean input.
            masks: fixed masks, trimmed with the batch where the labels are shorter; drawn when
                absent.
            mode: which modality the student loses; drawn when ``auto``.
            generator: NumPy generator of masks and mode; needed when either is drawn.

        Raises:
            ValueError: inputs that do not fit, or no generator where one is needed.
        """
        if mode not in (*MODES, "auto"):
            raise ValueError(f"mode must be 'auto' or one of {MODES}, got {mode!r}")
        if generator is None and (masks is None or mode == "auto"):
            raise ValueError("generator is None: masks or mode are to be drawn")
        self.check_inputs(batch.audio, batch.video, batch.padding_mask)
        self.check_inputs(batch.clean_audio, batch.clean_video, batch.padding_mask)
        batch = self._fit_labels(batch)
        if masks is None:
            assert generator is not None
            masks = self._draw_masks(batch, generator)
        else:
            masks = masks.trimmed(batch.audio.shape[2])
        if mode == "auto":
            assert generator is not None
            chosen = self.draw_mode(generator)
        else:
            chosen = mode
        hidden, penalty = self._student(batch, masks, chosen)
        losses, counts = self._regressions(batch, masks, chosen, hidden)
        total = self.config.distill_weight * sum(losses.values())
        padding = batch.padding_mask
        present = torch.ones_like(masks.audio) if padding is None else ~padding
        n_frames = int(present.sum())
        if "mlm" in self.config.tasks:
            assert batch.labels is not None  # _fit_labels refuses a batch without
            entropies, seen = self._masked_language_model(batch.labels, masks, present, hidden)
            total = total + sum(entropies.values())
            losses, counts = losses | entropies, counts | seen
        total = total + self.config.feature_penalty * penalty * n_frames
        total = total + self._unused(chosen)
        losses["features"] = penalty
        return CAV2vecOutput(
            total / n_frames, total, losses, counts, n_frames, chosen, hidden, masks
        )

    def _draw_masks(self, batch: AVBatch, generator: RandomSource) -> Masks:
        return draw_masks(
            batch.audio_corrupted | batch.video_corrupted,
            batch.padding_mask,
            generator=generator,
            audio_span=self.config.audio_span,
            video_span=self.config.video_span,
        )

    def _unused(self, mode: Mode) -> Tensor:
        """Zero, with a path to every parameter that `mode` leaves out: a static graph for DDP."""
        used = {task.head for task in self.active if task.mode == mode}
        modules = [getattr(self, head) for head in HEADS if head not in used]
        if mode == "audio_dropped":
            modules.append(self.feature_extractor_audio)
        if mode == "video_dropped":
            modules.append(self.feature_extractor_video)
        parameters = [p for module in modules for p in module.parameters()]
        if mode == "audio_dropped":
            parameters.append(self.mask_emb)
        if "mlm" not in self.config.tasks:
            parameters += [self.label_embs_concat, *self.final_proj.parameters()]
        zero = self.mask_emb.new_zeros(())
        return sum((p.sum() for p in parameters if p.requires_grad), zero) * 0.0
