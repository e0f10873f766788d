"""The AV-HuBERT encoder: two front-ends, concatenation, transformer (sec. 3, fig. 2)."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ritornello.methods.cav2vec.baselines import ReliabilityScores
from ritornello.methods.cav2vec.checkpoint import (
    FairseqCheckpoint,
    SavedModel,
    encoder_sizes,
    load_named,
    read_fairseq,
)
from ritornello.methods.cav2vec.frontend import AudioFrontend, GradientScale, VideoFrontend
from ritornello.methods.cav2vec.transformer import EncoderResult, TransformerEncoder

Fusion = Literal["concat", "reliability"]


@dataclass(frozen=True)
class AVHubertConfig:
    """Sizes and dropout of the encoder; the defaults are AV-HuBERT Large's.

    Args:
        embed_dim: width D of the transformer.
        ffn_dim: width of its feed-forward part.
        num_layers: transformer layers.
        num_heads: attention heads.
        pos_conv_kernel: frames the positional convolution sees.
        pos_conv_groups: its groups.
        layer_norm_first: pre-norm (Base and Large) or post-norm.
        dropout: after attention, feed-forward and positions.
        attention_dropout: on attention weights.
        activation_dropout: inside the feed-forward part.
        input_dropout: on the fused features.
        layerdrop: chance that a layer is skipped in training.
        audio_dim: stacked filterbank channels.
        image_size: height and width of a mouth crop in pixels.
        frontend_widths: channels of the ResNet's stages.
        feature_gradient_scale: factor on the gradients that reach the front-ends in pretraining.
        fusion: ``concat``, or ``reliability`` for scores on each stream (AV-RelScore).
    """

    embed_dim: int = 1024
    ffn_dim: int = 4096
    num_layers: int = 24
    num_heads: int = 16
    pos_conv_kernel: int = 128
    pos_conv_groups: int = 16
    layer_norm_first: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    input_dropout: float = 0.1
    layerdrop: float = 0.05
    audio_dim: int = 104
    image_size: int = 88
    frontend_widths: tuple[int, ...] = (64, 128, 256, 512)
    feature_gradient_scale: float = 0.1
    fusion: Fusion = "concat"

    def __post_init__(self) -> None:
        object.__setattr__(self, "frontend_widths", tuple(self.frontend_widths))
        for divisor in ("num_heads", "pos_conv_groups"):
            if self.embed_dim % getattr(self, divisor):
                raise ValueError(
                    f"embed_dim must be a multiple of {divisor}={getattr(self, divisor)}, "
                    f"got {self.embed_dim}"
                )
        if self.fusion not in ("concat", "reliability"):
            raise ValueError(f"fusion must be 'concat' or 'reliability', got {self.fusion!r}")

    @classmethod
    def large(cls, **changes: Any) -> "AVHubertConfig":
        """24 layers of width 1024."""
        return cls(**changes)

    @classmethod
    def base(cls, **changes: Any) -> "AVHubertConfig":
        """12 layers of width 768."""
        sizes: dict[str, Any] = {
            "embed_dim": 768,
            "ffn_dim": 3072,
            "num_layers": 12,
            "num_heads": 12,
        }
        return cls(**(sizes | changes))

    @classmethod
    def tiny(cls, **changes: Any) -> "AVHubertConfig":
        """3 layers of width 64 on 28-pixel crops: minutes on a CPU."""
        sizes: dict[str, Any] = {
            "embed_dim": 64,
            "ffn_dim": 192,
            "num_layers": 3,
            "num_heads": 4,
            "pos_conv_kernel": 32,
            "pos_conv_groups": 4,
            "image_size": 28,
            "frontend_widths": (8, 16, 32),
            "layerdrop": 0.0,
        }
        return cls(**(sizes | changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to ``config.json``."""
        return asdict(self)


class AVEncoderOutput(NamedTuple):
    """What the encoder returns.

    `last_hidden_state` (batch, time, D); `fused` the concatenated features before their norm
    (batch, time, 2D), of no meaning at padding; lists of every layer's output and FFN output, empty
    unless asked for.
    """

    last_hidden_state: Tensor
    fused: Tensor
    padding_mask: Tensor | None
    hidden_states: list[Tensor]
    ffn_outputs: list[Tensor]


class AVHubertModel(SavedModel):
    """Speech representations from sound, lips or both.

    The names of the parameters are those of the published checkpoints; load one with
    ``AVHubertModel.from_fairseq(path)``.
    """

    config_class = AVHubertConfig

    def __init__(self, config: AVHubertConfig) -> None:
        super().__init__()
        self.config, self.encoder_config = config, config
        dim = config.embed_dim
        self.mask_emb = nn.Parameter(torch.rand(config.audio_dim))
        self.feature_extractor_audio = AudioFrontend(config.audio_dim, dim)
        self.feature_extractor_video = VideoFrontend(config.frontend_widths, dim)
        self.post_extract_proj = nn.Linear(2 * dim, dim)
        self.encoder = TransformerEncoder(
            dim,
            config.ffn_dim,
            config.num_layers,
            config.num_heads,
            pos_conv_kernel=config.pos_conv_kernel,
            pos_conv_groups=config.pos_conv_groups,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            layerdrop=config.layerdrop,
            layer_norm_first=config.layer_norm_first,
        )
        self.layer_norm = nn.LayerNorm(2 * dim)
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.reliability = ReliabilityScores(dim) if config.fusion == "reliability" else None

    @classmethod
    def from_fairseq(cls, source: str | Path | bytes | FairseqCheckpoint, **changes: Any) -> Self:
        """The encoder of a published file, pretrained or fine-tuned; fairseq is not needed.

        Args:
            source: path or bytes of the file.
            changes: arguments of `AVHubertConfig` that the file does not decide.
        """
        known = isinstance(source, FairseqCheckpoint)
        checkpoint = source if known else read_fairseq(source)
        sizes = encoder_sizes(checkpoint, changes.get("num_heads"))
        model = cls(AVHubertConfig(**(sizes | changes)))
        state = {"mask_emb": model.mask_emb.data} | checkpoint.backbone  # fine-tuned files drop it
        load_named(model, state, source="the checkpoint")
        return model

    def check_inputs(
        self, audio: Tensor | None, video: Tensor | None, padding_mask: Tensor | None
    ) -> None:
        """Raises a ValueError for inputs that do not fit together."""
        size, channels = self.encoder_config.image_size, self.encoder_config.audio_dim
        if audio is None and video is None:
            raise ValueError("audio and video are both None: at least one modality is needed")
        if audio is not None and (audio.dim() != 3 or audio.shape[1] != channels):
            raise ValueError(f"audio must be (batch, {channels}, time), got {tuple(audio.shape)}")
        if video is not None and (video.dim() != 5 or video.shape[-2:] != (size, size)):
            raise ValueError(
                f"video must be (batch, 1, time, {size}, {size}), got {tuple(video.shape)}"
            )
        present = [(x.shape[0], x.shape[2]) for x in (audio, video) if x is not None]
        if present[0] != present[-1]:
            raise ValueError(
                f"audio and video must agree in batch and time, got {present}: "
                "fit the features with LogFilterbank(...)(waveform, num_frames=...)"
            )
        if present[0][1] == 0:
            raise ValueError("audio and video must have at least one frame, got none")
        if padding_mask is not None:
            if tuple(padding_mask.shape) != present[0]:
                raise ValueError(
                    f"padding_mask must be {present[0]}, got {tuple(padding_mask.shape)}"
                )
            if bool((padding_mask[:, :-1] & ~padding_mask[:, 1:]).any()):
                raise ValueError("padding_mask must be True only at the right end of each row")

    def fuse(
        self,
        audio_features: Float[Tensor, "batch time dim"] | None,
        video_features: Float[Tensor, "batch time dim"] | None,
    ) -> Float[Tensor, "batch time wide"]:
        """[audio; video]; an absent modality is zeros *after* its projection."""
        present = audio_features if audio_features is not None else video_features
        assert present is not None
        absent = torch.zeros_like(present)
        audio = absent if audio_features is None else audio_features
        video = absent if video_features is None else video_features
        if self.reliability is not None:
            audio, video = self.reliability(audio, video)
        return torch.cat([audio, video], dim=-1)

    def project(self, fused: Float[Tensor, "batch time wide"]) -> Float[Tensor, "batch time dim"]:
        """Norm of the joint features and projection to the transformer's width."""
        return self.post_extract_proj(self.layer_norm(fused))

    def scale_gradient(self, features: Tensor) -> Tensor:
        """Lets a tenth of the gradient pass to the front-ends (pretraining)."""
        scale = self.encoder_config.feature_gradient_scale
        return features if scale == 1 else GradientScale.apply(features, scale)

    def encode(
        self,
        fused: Float[Tensor, "batch time wide"],
        padding_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> EncoderResult:
        """The transformer on fused features."""
        return self.encoder(self.input_dropout(self.project(fused)), padding_mask)

    def forward(
        self,
        audio: Float[Tensor, "batch channels time"] | None = None,
        video: Float[Tensor, "batch 1 time height width"] | None = None,
        padding_mask: Bool[Tensor, "batch time"] | None = None,
        output_hidden_states: bool = False,
        output_ffn: bool = False,
    ) -> AVEncoderOutput:
        """Encodes a batch; leave a modality out and the output does not depend on it.

        Args:
            audio: stacked filterbanks of `LogFilterbank`.
            video: normalised grey mouth crops, 25 frames a second; zeros at padding, because the
                first convolution looks two frames ahead.
            padding_mask: True at padded frames.
            output_hidden_states: return every layer's output.
            output_ffn: return every layer's feed-forward output before its residual.

        Raises:
            ValueError: shapes that do not fit, no modality, padding that is not at the right.
        """
        self.check_inputs(audio, video, padding_mask)
        audio_features = None if audio is None else self.feature_extractor_audio(audio)
        video_features = None
        if video is not None:
            video_features = self.feature_extractor_video(video, padding_mask)
        fused = self.fuse(audio_features, video_features)
        result = self.encode(fused, padding_mask)
        return AVEncoderOutput(
            result.last_hidden_state,
            fused,
            padding_mask,
            result.hidden_states if output_hidden_states else [],
            result.ffn_outputs if output_ffn else [],
        )
