"""Part B: perplexity of a language model under each quantiser, and where its outliers are."""

import hashlib
import importlib.resources
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ritornello.common.cache import cached_directory
from ritornello.common.data.text import text_windows
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.rrs.figures import figures
from ritornello.experiments.rrs.matrices import OutlierMatrices
from ritornello.methods.rrs import (
    QuantLinear,
    RRSConfig,
    from_pretrained,
    quantize_model,
    requantize_activations,
    save_pretrained,
)
from ritornello.methods.rrs.families import family_of, layers_of
from ritornello.methods.rrs.quantize import quant_linears, weights_key
from ritornello.methods.rrs.smoothing import runtime_smooth_scale

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ChannelOutliers", "OutlierMatrices", "Perplexity", "figures"]


@dataclass
class LanguageModel(Experiment):
    """What the parts on a language model share.

    Attributes:
        model: makes the checkpoint.
        tokenizer: makes its tokenizer.
        text: text that is scored.
        calibration_text: text for GPTQ and SmoothQuant; None for the second half of `text`.
        tokens: length of a window.
        windows: how many are scored, in order; None for the whole text, its tail dropped.
        calibration_tokens, calibration_windows: the same for calibration, drawn at random.
    """

    model: Callable[[], "PreTrainedModel"]
    tokenizer: Callable[[], Callable]
    text: Callable[[], str]
    calibration_text: Callable[[], str] | None = None
    tokens: int = 256
    windows: int | None = 4
    calibration_tokens: int = 256
    calibration_windows: int = 4
    _prepared: dict[RRSConfig, "PreTrainedModel"] = field(default_factory=dict, repr=False)

    @cached_property
    def _scored(self) -> Tensor:
        text = self.text()
        half = text if self.calibration_text else text[: len(text) // 2]
        tokenizer = self.tokenizer()
        if self.windows is not None:
            return text_windows(half, tokenizer, tokens=self.tokens, windows=self.windows)
        ids = torch.tensor(tokenizer(half, add_special_tokens=False)["input_ids"])
        return ids[: len(ids) // self.tokens * self.tokens].view(-1, self.tokens)

    @cached_property
    def _calibration(self) -> Tensor:
        text = self.calibration_text() if self.calibration_text else self.text()
        half = text if self.calibration_text else text[len(text) // 2 :]
        size = {"tokens": self.calibration_tokens, "windows": self.calibration_windows}
        return text_windows(half, self.tokenizer(), **size, order="random")

    def quantized(self, config: RRSConfig) -> "PreTrainedModel":
        """The model with the weights that `config` wants; the last one is kept for the next arm."""
        key = weights_key(config)
        if key not in self._prepared:
            self._prepared.clear()
            self._prepared[key] = self._with_rounded_weights(key)
        return requantize_activations(self._prepared[key], config)

    def _with_rounded_weights(self, key: RRSConfig) -> "PreTrainedModel":
        model = self.model()
        calibration = self._calibration if key.needs_calibration else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the embeddings were tied")
            if key.w_bits == 16 or key.weight_method == "rtn":
                return quantize_model(model, key, calibration)
            device = model.device
            name = f"rrs-{_digest(model, key, calibration)}"
            folder = cached_directory(
                name, lambda place: save_pretrained(quantize_model(model, key, calibration), place)
            )
        return from_pretrained(folder, device=device)


@dataclass
class Perplexity(LanguageModel):
    """exp of the mean loss over windows; the samples are the losses of the windows."""

    @torch.inference_mode()
    def measure(self, arm: RRSConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        model = self.quantized(arm)
        context.uses("scored tokens", hashlib.sha256(self._scored.numpy().tobytes()).hexdigest())
        losses = []
        for window in self._scored.to(model.device):
            logits = model(window[None], use_cache=False).logits[0, :-1].float()
            losses.append(nn.functional.cross_entropy(logits, window[1:]).item())
        mean = sum(losses) / len(losses)
        perplexity = torch.tensor(mean, dtype=torch.float64).exp().item()
        yield Measurement("perplexity", perplexity, samples=losses, aggregate="exp_mean")
        yield Measurement("weight_megabytes", _weight_bytes(model) / 1e6, unit="MB")


@dataclass
class ChannelOutliers(LanguageModel):
    """How far the largest channels stand out in the inputs of every layer, by kind of input."""

    @torch.inference_mode()
    def measure(self, arm: RRSConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        model = self.quantized(arm)
        family = family_of(model)
        found: dict[tuple[int, str], Tensor] = {}
        hooks = []
        for number, layer in enumerate(layers_of(model)):
            for names in family.groups:
                linear = layer.get_submodule(names[0])
                assert isinstance(linear, QuantLinear)
                kind = family.projections[names[0]]

                def keep(
                    module: QuantLinear, args: tuple[Tensor], place: tuple = (number, kind)
                ) -> None:
                    x = args[0] if module.rotation is None else module.rotation(args[0])
                    found[place] = x.reshape(-1, x.shape[-1]).float()

                hooks.append(linear.register_forward_pre_hook(keep))
        model(self._scored[:1].to(model.device), use_cache=False)
        for hook in hooks:
            hook.remove()
        for (number, kind), x in found.items():
            if arm.smooth == "runtime":
                x = x / runtime_smooth_scale(x, arm.group_size, arm.scale_stat)
            place = {"layer": number, "input": kind}
            channels = x.abs().amax(0)
            ratio = (channels.max() / channels.median()).item()
            yield Measurement("channel_max_over_median", ratio, coordinates=place)
            centred = (x - x.mean()) / x.std()
            yield Measurement("kurtosis", centred.pow(4).mean().item(), coordinates=place)


def _weight_bytes(model: "PreTrainedModel") -> int:
    """Bytes in which the projections are stored."""
    return sum(t.nbytes for layer in quant_linears(model) for t in layer.buffers())


def _digest(model: "PreTrainedModel", key: RRSConfig, calibration: Tensor | None) -> str:
    """Hash of all that decides the rounded weights: checkpoint, config, text and code."""
    digest = hashlib.sha256(repr(key).encode())
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()[:4096].float().cpu().numpy()
        digest.update(name.encode() + values.tobytes())
    if calibration is not None:
        digest.update(calibration.numpy().tobytes())
    for file in sorted(importlib.resources.files("ritornello.methods.rrs").iterdir(), key=str):
        if file.name.endswith((".py", ".cpp")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:20]
