"""Part B: perplexity of a language model under each quantiser, and where its outliers are."""

import hashlib
import importlib.resources
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ritornello.common.cache import cached_directory
from ritornello.common.data.text import text_windows
from ritornello.common.errors import UserError
from ritornello.common.models import load_causal_lm
from ritornello.common.models.hub import check_architecture, resolve_device
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.rrs.figures import figures
from ritornello.experiments.rrs.matrices import OutlierMatrices
from ritornello.experiments.rrs.zero_shot import check_tasks, zero_shot_answers
from ritornello.methods.rrs import (
    QuantLinear,
    RRSConfig,
    from_pretrained,
    quantize_model,
    requantize_activations,
    save_pretrained,
)
from ritornello.methods.rrs.families import family_of, layers_of
from ritornello.methods.rrs.offload import offload_device, offload_layers
from ritornello.methods.rrs.quantize import quant_linears, weights_key
from ritornello.methods.rrs.smoothing import runtime_smooth_scale

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ChannelOutliers", "OutlierMatrices", "Perplexity", "ZeroShot", "figures"]

# The quantised model of the last arm, with what made it. One a process, shared by the parts: a
# model for each part would stay in memory until the last cell.
_HELD: dict[tuple[str, str, RRSConfig], tuple[Callable, "PreTrainedModel"]] = {}


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

    def prepare(self) -> None:
        """Fetches and cuts the texts, and looks at the model's architecture."""
        self.text()
        if self.calibration_text:
            self.calibration_text()
        _ = self._scored, self._calibration
        check_architecture(self.model, family_of)

    @cached_property
    def _scored(self) -> Tensor:
        text = self.text()
        half = text if self.calibration_text else text[: len(text) // 2]
        tokenizer = self.tokenizer()
        if self.windows is not None:
            return text_windows(half, tokenizer, tokens=self.tokens, windows=self.windows)
        ids = torch.tensor(tokenizer(half, add_special_tokens=False)["input_ids"])
        if len(ids) < self.tokens:
            raise UserError(f"the text has {len(ids)} tokens, fewer than tokens={self.tokens}")
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
        calibration = self._calibration if key.needs_calibration else None
        held = repr(self.model), _tokens_digest(calibration), key
        if held not in _HELD:
            _HELD.clear()
            _HELD[held] = self.model, self._with_rounded_weights(key, calibration)
        return requantize_activations(_HELD[held][1], config)

    def _with_rounded_weights(
        self, key: RRSConfig, calibration: Tensor | None
    ) -> "PreTrainedModel":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the embeddings were tied")
            if key.w_bits == 16 or key.weight_method == "rtn":
                return quantize_model(self.model(), key, calibration)
            return self._rounded_once(key, calibration)

    def _rounded_once(self, key: RRSConfig, calibration: Tensor | None) -> "PreTrainedModel":
        """The packed weights, found once for all runs, from the disk."""
        model = self.model()
        name = f"rrs-{_digest(model, key, calibration)}"
        folder = cached_directory(
            name, lambda place: save_pretrained(quantize_model(model, key, calibration), place)
        )
        device, guests_of = model.device, offload_device(model)
        del model
        if guests_of is None:
            return from_pretrained(folder, device=device)
        return offload_layers(from_pretrained(folder), guests_of)


def load_offloaded_lm(
    name_or_path: str, dtype: str = "float16", device: str = "cuda", revision: str | None = None
) -> "PreTrainedModel":
    """A causal language model in the machine's memory that computes on `device`, layer by layer."""
    model = load_causal_lm(name_or_path, dtype, "cpu", revision)
    return offload_layers(model, resolve_device(device))


@dataclass
class Perplexity(LanguageModel):
    """exp of the mean loss over windows; the samples are the losses of the windows."""

    @torch.inference_mode()
    def measure(self, arm: RRSConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        model = self.quantized(arm)
        context.uses("scored tokens", _tokens_digest(self._scored))
        losses, seconds = [], []
        for window in self._scored.to(model.device):
            begin = time.perf_counter()
            logits = model(window[None], use_cache=False).logits[0, :-1].float()
            losses.append(nn.functional.cross_entropy(logits, window[1:]).item())
            seconds.append((time.perf_counter() - begin) * 1000 / self.tokens)
        mean = sum(losses) / len(losses)
        perplexity = torch.tensor(mean, dtype=torch.float64).exp().item()
        yield Measurement("perplexity", perplexity, samples=losses, aggregate="exp_mean")
        each = sum(seconds) / len(seconds)
        yield Measurement("seconds_per_1000_tokens", each, unit="s", samples=seconds)
        yield Measurement("weight_megabytes", _weight_bytes(model) / 1e6, unit="MB")


@dataclass
class ZeroShot(LanguageModel):
    """Accuracy on a task of lm-evaluation-harness without examples, the coordinate `task`.

    Attributes:
        batch_size: pairs of context and choice in a forward pass. The harness pads without telling
            the model, and padding would enter the scales of Runtime Smooth: 1 has none.
        limit: only so many questions; None for all.
        task_folder: a folder with tasks of one's own, as YAML of the harness.
        tasks: all values of the coordinate, tried before the first cell.
    """

    batch_size: int = 1
    limit: int | None = None
    task_folder: str | None = None
    tasks: Sequence[str] = ()

    def prepare(self) -> None:
        check_tasks(self.tasks, self.task_folder)
        super().prepare()

    @torch.inference_mode()
    def measure(self, arm: RRSConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        right = zero_shot_answers(
            self.quantized(arm),
            self.tokenizer(),
            str(cell.coordinates["task"]),
            batch_size=self.batch_size,
            limit=self.limit,
            task_folder=self.task_folder,
        )
        for metric, answers in right.items():
            share = sum(answers) / len(answers)
            yield Measurement(metric, share, samples=answers)


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


def _tokens_digest(ids: Tensor | None) -> str:
    return "" if ids is None else hashlib.sha256(ids.numpy().tobytes()).hexdigest()


def _weight_bytes(model: "PreTrainedModel") -> int:
    """Bytes in which the projections are stored."""
    return sum(t.nbytes for layer in quant_linears(model) for t in layer.buffers())


def _digest(model: "PreTrainedModel", key: RRSConfig, calibration: Tensor | None) -> str:
    """Hash of all that decides the rounded weights: checkpoint, config, text and code."""
    digest = hashlib.sha256(repr(key).encode())
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()[:4096].float().cpu().numpy()
        digest.update(name.encode() + values.tobytes())
    digest.update(_tokens_digest(calibration).encode())
    for file in sorted(importlib.resources.files("ritornello.methods.rrs").iterdir(), key=str):
        if file.name.endswith((".py", ".cpp")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:20]
