"""Recognition: the encoder with a CTC head, or with a transformer decoder (sec. 4.1)."""

from abc import abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ritornello.methods.cav2vec.batch import SpeechBatch
from ritornello.methods.cav2vec.beam_search import Hypothesis, beam_search
from ritornello.methods.cav2vec.checkpoint import (
    SavedModel,
    heads_of_decoder,
    load_named,
    read_fairseq,
)
from ritornello.methods.cav2vec.decoder import SpeechDecoder
from ritornello.methods.cav2vec.encoder import AVHubertConfig, AVHubertModel
from ritornello.methods.cav2vec.tokens import BOS, EOS, PAD, Tokenizer


@dataclass(frozen=True)
class RecognizerConfig:
    """Sizes of a recogniser; the decoder's are the paper's for AV-HuBERT Large.

    Args:
        vocabulary: tokens, specials included.
        encoder: the encoder's sizes.
        decoder_layers: layers of the decoder (unused by CTC).
        decoder_ffn_dim: width of its feed-forward part.
        decoder_heads: its attention heads.
        label_smoothing: of the cross-entropy.
        decoder_dropout: everywhere in the decoder.
    """

    vocabulary: int
    encoder: AVHubertConfig = field(default_factory=AVHubertConfig)
    decoder_layers: int = 9
    decoder_ffn_dim: int = 4096
    decoder_heads: int = 8
    label_smoothing: float = 0.1
    decoder_dropout: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.encoder, dict):
            object.__setattr__(self, "encoder", AVHubertConfig(**self.encoder))
        if self.vocabulary < 5:
            raise ValueError(
                f"vocabulary must hold a token besides 4 specials, got {self.vocabulary}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to ``config.json``."""
        return asdict(self)


class RecognizerOutput(NamedTuple):
    """`loss` is None without tokens; `logits` (batch, time or length, vocabulary)."""

    loss: Tensor | None
    logits: Tensor
    lengths: Tensor


class _Recognizer(SavedModel):
    """What both recognisers share: the encoder and how it is loaded and called.

    `tokenizer` turns tokens into text where a call gives no other one.
    """

    config_class = RecognizerConfig
    tokenizer: Tokenizer | None = None

    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = AVHubertModel(config.encoder)

    def load_encoder(self, model: AVHubertModel) -> None:
        """Starts from a pretrained encoder."""
        names = self.backbone.state_dict().keys()
        self.backbone.load_state_dict({k: v for k, v in model.state_dict().items() if k in names})

    def _encode(self, batch: SpeechBatch) -> tuple[Tensor, Tensor]:
        hidden = self.backbone(batch.audio, batch.video, batch.padding_mask).last_hidden_state
        if batch.padding_mask is None:
            lengths = torch.full((len(hidden),), hidden.shape[1], device=hidden.device)
        else:
            lengths = (~batch.padding_mask).sum(1)
        return hidden, lengths

    @abstractmethod
    def generate(self, batch: SpeechBatch) -> list[list[int]]:
        """Token sequences of a batch."""

    def tokenizer_or(self, given: Tokenizer | None) -> Tokenizer:
        """The given tokenizer, else the model's own.

        Raises:
            ValueError: there is neither.
        """
        chosen = given or self.tokenizer
        if chosen is None:
            raise ValueError("tokenizer is None, and the model has none: set model.tokenizer")
        return chosen

    @torch.no_grad()
    def transcribe(
        self,
        wav: np.ndarray | None,
        frames: np.ndarray | None,
        tokenizer: Tokenizer | None = None,
        **decoding: Any,
    ) -> str:
        """Text of one clip.

        Args:
            wav: int16 samples at 16 kHz, or None.
            frames: uint8 mouth crops (time, height, width) at 25 Hz, or None.
            tokenizer: turns tokens into text; the model's own when absent.
            decoding: arguments of `generate`.

        Raises:
            ValueError: neither sound nor picture, shapes or lengths that do not fit, no tokenizer.
        """
        from ritornello.methods.cav2vec.data import clip_batch

        text_of = self.tokenizer_or(tokenizer)
        device = next(self.parameters()).device
        batch = clip_batch(wav, frames, self.config.encoder.image_size).to(device)
        training = self.training
        self.eval()
        tokens = self.generate(batch, **decoding)[0]
        self.train(training)
        return text_of.decode(tokens)


class AVForCTC(_Recognizer):
    """A linear layer per frame, trained with connectionist temporal classification.

    Token `BOS` serves as the blank.
    """

    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__(config)
        self.proj = nn.Linear(config.encoder.embed_dim, config.vocabulary)

    @classmethod
    def from_fairseq(cls, source: Any, **changes: Any) -> "AVForCTC":
        """A file fine-tuned with CTC; `changes` as of `AVHubertModel.from_fairseq`."""
        checkpoint = read_fairseq(source)
        head = {k.removeprefix("encoder."): v for k, v in checkpoint.rest.items()}
        if "proj.weight" not in head:
            raise ValueError("source must be fine-tuned with CTC: it has no encoder.proj.weight")
        backbone = AVHubertModel.from_fairseq(checkpoint, **changes)
        model = cls(RecognizerConfig(len(head["proj.weight"]), encoder=backbone.config))
        model.load_encoder(backbone)
        load_named(
            model.proj, {k[5:]: v for k, v in head.items() if k[:5] == "proj."}, source="head"
        )
        return model

    def forward(self, batch: SpeechBatch) -> RecognizerOutput:
        """Frame logits, and the mean loss per sentence if the batch has tokens."""
        hidden, lengths = self._encode(batch)
        logits = self.proj(hidden)
        if batch.tokens is None:
            return RecognizerOutput(None, logits, lengths)
        assert batch.token_lengths is not None  # tokens come with their lengths
        log_probs = logits.float().log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(
            log_probs, batch.tokens, lengths, batch.token_lengths, blank=BOS, zero_infinity=True
        )
        return RecognizerOutput(loss, logits, lengths)

    @torch.no_grad()
    def generate(self, batch: SpeechBatch) -> list[list[int]]:
        """Best path: the likeliest token of every frame, repeats and blanks removed."""
        _, logits, lengths = self(batch._replace(tokens=None))
        sequences = []
        for best, length in zip(logits.argmax(-1).cpu(), lengths.tolist(), strict=True):
            collapsed = torch.unique_consecutive(best[:length])
            sequences.append(collapsed[collapsed != BOS].tolist())
        return sequences


class AVForSpeechSeq2Seq(_Recognizer):
    """A transformer decoder on the encoder, trained with label smoothing."""

    def __init__(self, config: RecognizerConfig) -> None:
        super().__init__(config)
        dim = config.encoder.embed_dim
        self.decoder = SpeechDecoder(
            config.vocabulary,
            dim,
            config.decoder_ffn_dim,
            config.decoder_layers,
            config.decoder_heads,
            memory_dim=dim,
            dropout=config.decoder_dropout,
            pad=PAD,
        )

    @classmethod
    def from_fairseq(
        cls, source: Any, *, decoder_heads: int | None = None, **changes: Any
    ) -> "AVForSpeechSeq2Seq":
        """A file fine-tuned with a decoder.

        Args:
            source: path or bytes of the file.
            decoder_heads: attention heads of the decoder, for a file that does not say it.
            changes: as of `AVHubertModel.from_fairseq`.
        """
        checkpoint = read_fairseq(source)
        state = {k.removeprefix("decoder."): v for k, v in checkpoint.rest.items()}
        if "embed_tokens.weight" not in state:
            raise ValueError("source must be fine-tuned with a decoder: it has no embed_tokens")
        backbone = AVHubertModel.from_fairseq(checkpoint, **changes)
        layers = [int(k.split(".")[1]) for k in state if k.startswith("layers.")]
        config = RecognizerConfig(
            len(state["embed_tokens.weight"]),
            encoder=backbone.config,
            decoder_layers=1 + max(layers),
            decoder_ffn_dim=len(state["layers.0.fc1.weight"]),
            decoder_heads=decoder_heads or heads_of_decoder(checkpoint),
        )
        model = cls(config)
        model.load_encoder(backbone)
        load_named(model.decoder, state, source="the decoder's weights")
        return model

    def forward(self, batch: SpeechBatch) -> RecognizerOutput:
        """Teacher-forced logits and the mean loss per token (`tokens` without the end token)."""
        if batch.tokens is None:
            raise ValueError("batch.tokens is None: call generate() to decode without a reference")
        hidden, lengths = self._encode(batch)
        targets = F.pad(batch.tokens, (0, 1), value=PAD)
        rows = torch.arange(len(targets), device=targets.device)
        targets[rows, batch.token_lengths] = EOS
        inputs = F.pad(targets[:, :-1], (1, 0), value=EOS)
        logits, _ = self.decoder(inputs, self.decoder.start(hidden), self._memory_mask(batch))
        loss = F.cross_entropy(
            logits.float().flatten(0, 1),
            targets.flatten(),
            ignore_index=PAD,
            label_smoothing=self.config.label_smoothing,
        )
        return RecognizerOutput(loss, logits, lengths)

    @staticmethod
    def _memory_mask(batch: SpeechBatch) -> Bool[Tensor, "batch 1 1 time"] | None:
        return None if batch.padding_mask is None else ~batch.padding_mask[:, None, None, :]

    @torch.no_grad()
    def hypotheses(
        self,
        batch: SpeechBatch,
        *,
        beam: int = 50,
        length_penalty: float = 1.0,
        max_len: int | None = None,
    ) -> list[list[Hypothesis]]:
        """The `beam` best sentences of every clip.

        Args:
            beam: prefixes kept.
            length_penalty: exponent of the length.
            max_len: tokens; the number of frames when absent.
        """
        hidden, _ = self._encode(batch)
        memory_mask = self._memory_mask(batch)
        caches = self.decoder.start(hidden.repeat_interleave(beam, 0))
        mask = None if memory_mask is None else memory_mask.repeat_interleave(beam, 0)

        def step(
            tokens: Int[Tensor, "rows n"], origins: Tensor
        ) -> Float[Tensor, "rows vocabulary"]:
            nonlocal caches
            caches = [type(c)(*(part[origins] for part in c)) for c in caches]
            logits, caches = self.decoder(tokens[:, -1:], caches, mask)
            return logits[:, -1].float().log_softmax(-1)

        return beam_search(
            step,
            len(hidden),
            beam=beam,
            max_len=hidden.shape[1] if max_len is None else max_len,
            eos=EOS,
            pad=PAD,
            length_penalty=length_penalty,
            device=hidden.device,
        )

    def generate(self, batch: SpeechBatch, **decoding: Any) -> list[list[int]]:
        """The best sentence of every clip, without the end token; arguments as `hypotheses`."""
        return [found[0].tokens[:-1] for found in self.hypotheses(batch, **decoding)]


def freeze_encoder(model: _Recognizer, frozen: bool) -> None:
    """Keeps the encoder still, as in the first 48 000 of the paper's 60 000 fine-tuning steps."""
    model.backbone.requires_grad_(not frozen)
