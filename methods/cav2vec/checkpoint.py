"""Checkpoints: our own folders, and fairseq's published files without fairseq.

fairseq files are pickles full of foreign classes. They are read by an unpickler that builds tensors
and plain containers, keeps classes of configuration libraries as inert records, and refuses
everything else: nothing in the file is ever called.
"""

import io
import json
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

_INERT_ROOTS = {
    "_codecs", "argparse", "av2vec", "avhubert", "cav2vec", "enum", "fairseq", "hubert",
    "hubert_pretraining", "numpy", "omegaconf", "pathlib", "typing",
}  # fmt: skip
_ALLOWED = {
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "Size"),
    ("torch", "device"),
    ("builtins", "set"),
    ("builtins", "dict"),
    ("builtins", "list"),
    ("builtins", "int"),
    ("builtins", "float"),
    ("builtins", "str"),
    ("builtins", "bool"),
    ("builtins", "tuple"),
}
_WRAPPERS = ("encoder.w2v_model.", "w2v_encoder.w2v_model.", "w2v_model.")
_HEADS_BY_WIDTH = {768: 12, 1024: 16}
_DECODER_HEADS_BY_WIDTH = {768: 4, 1024: 8}
_NEEDED = (
    "post_extract_proj.weight",
    "feature_extractor_audio.proj.weight",
    "feature_extractor_video.resnet.trunk.layer1.0.conv1.weight",
    "encoder.pos_conv.0.parametrizations.weight.original1",
    "encoder.layers.0.fc1.weight",
)


class RefusedPickleError(pickle.UnpicklingError):
    """The pickle refers to something that a model file has no use for."""


class _Inert:
    """Stands for an object of a class that is not imported; keeps its state and does nothing."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.arguments, self.state = arguments, dict(keywords)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def append(self, value: Any) -> None:
        self.state.setdefault("items", []).append(value)

    def extend(self, values: Any) -> None:
        self.state.setdefault("items", []).extend(values)

    def __call__(self, *arguments: Any, **keywords: Any) -> "_Inert":
        return _Inert(*arguments, **keywords)

    def __hash__(self) -> int:
        return id(self)


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "__builtin__":  # its name in the pickle protocol that torch writes
            module = "builtins"
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.partition(".")[0] in _INERT_ROOTS:
            return type(name, (_Inert,), {})
        raise RefusedPickleError(
            f"the checkpoint asks for {module}.{name}, which a model file has no use for: refused"
        )


_pickle_module = SimpleNamespace(
    Unpickler=_RestrictedUnpickler,
    load=lambda file, **keywords: _RestrictedUnpickler(file, **keywords).load(),
    __name__="restricted",
)


def _plain(value: Any) -> Any:
    """Configuration records as dictionaries and plain values."""
    if isinstance(value, _Inert):
        state = value.state
        if isinstance(state, dict):
            for inner in ("_content", "_val"):
                if inner in state:
                    return _plain(state[inner])
            return {key: _plain(item) for key, item in state.items()}
        return _plain(state)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class FairseqCheckpoint:
    """A published file: settings of encoder and recogniser, and its tensors under our names."""

    settings: dict[str, Any]
    recognizer_settings: dict[str, Any]
    backbone: dict[str, Tensor]
    rest: dict[str, Tensor]
    teacher: dict[str, Tensor]


def _rename(name: str) -> str:
    """Old weight-norm names (2022) to those of the parametrisation."""
    for old, new in (("weight_g", "original0"), ("weight_v", "original1")):
        if name.endswith(f"pos_conv.0.{old}"):
            return name.removesuffix(old) + f"parametrizations.weight.{new}"
    return name


def read_fairseq(source: str | Path | bytes) -> FairseqCheckpoint:
    """Reads a pretrained or fine-tuned AV-HuBERT or CAV2vec file.

    Args:
        source: the file's path, or its bytes.

    Raises:
        ValueError: not such a file.
        RefusedPickleError: the pickle refers to anything but tensors and settings.
    """
    raw = _unpickled(source)
    state = raw["model"]
    teacher = {_rename(k): v for k, v in state.get("_ema", {}).items() if torch.is_tensor(v)}
    backbone, rest = {}, {}
    wrapped = any(name.startswith(_WRAPPERS) for name in state)
    for name, tensor in state.items():
        if not torch.is_tensor(tensor):
            continue
        prefix = next((p for p in _WRAPPERS if name.startswith(p)), "")
        target = rest if wrapped and not prefix else backbone
        target[_rename(name.removeprefix(prefix))] = tensor
    lacking = [name for name in _NEEDED if name not in backbone]
    if lacking:
        raise ValueError(f"source must hold an audio-visual encoder; it has no {lacking[0]}")
    settings = _plain(raw.get("cfg") or {})
    model = settings.get("model") or _plain(raw.get("args")) or {}
    inner = model.get("w2v_args")
    pretraining = (inner.get("model") or inner) if isinstance(inner, dict) else model
    return FairseqCheckpoint(pretraining, model, backbone, rest, teacher)


def _unpickled(source: str | Path | bytes) -> dict[str, Any]:
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise ValueError(f"source must be a checkpoint, no such file: {source}")
    file = io.BytesIO(source) if isinstance(source, bytes) else Path(source)
    try:
        raw = torch.load(file, map_location="cpu", weights_only=False, pickle_module=_pickle_module)
    except RefusedPickleError:
        raise
    except Exception as error:  # whatever torch and pickle make of other files
        raise ValueError(
            f"source must be a fairseq checkpoint, got a file that cannot be read: {error}"
        ) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise ValueError(
            "source must be a fairseq checkpoint with a 'model' entry, got another file"
        )
    return raw


def heads_of_decoder(checkpoint: FairseqCheckpoint) -> int:
    """Attention heads of the decoder of a fine-tuned file."""
    width = len(checkpoint.backbone["post_extract_proj.bias"])
    heads = checkpoint.recognizer_settings.get("decoder_attention_heads")
    heads = heads or _DECODER_HEADS_BY_WIDTH.get(width)
    if heads is None:
        raise ValueError(
            "the checkpoint does not say how many attention heads its decoder has "
            f"(width {width}): pass decoder_heads"
        )
    return int(heads)


def encoder_sizes(checkpoint: FairseqCheckpoint, num_heads: int | None = None) -> dict[str, Any]:
    """Arguments of `AVHubertConfig`: sizes from the tensors, the rest from the settings.

    Args:
        checkpoint: what `read_fairseq` returns.
        num_heads: attention heads, for a file that does not say it.
    """
    state, settings = checkpoint.backbone, checkpoint.settings
    dim = state["post_extract_proj.weight"].shape[0]
    kernel = state["encoder.pos_conv.0.parametrizations.weight.original1"]
    resnet = "feature_extractor_video.resnet.trunk.layer"
    widths = [
        state[f"{resnet}{stage}.0.conv1.weight"].shape[0]
        for stage in range(1, 9)
        if f"{resnet}{stage}.0.conv1.weight" in state
    ]
    heads = num_heads or settings.get("encoder_attention_heads") or _HEADS_BY_WIDTH.get(dim)
    if heads is None:
        raise ValueError(
            f"the checkpoint does not say how many attention heads it has (width {dim}): "
            "pass num_heads"
        )
    sizes = {
        "embed_dim": dim,
        "ffn_dim": state["encoder.layers.0.fc1.weight"].shape[0],
        "num_layers": 1
        + max(int(k.split(".")[2]) for k in state if k.startswith("encoder.layers.")),
        "num_heads": int(heads),
        "pos_conv_kernel": kernel.shape[2],
        "pos_conv_groups": dim // kernel.shape[1],
        "audio_dim": state["feature_extractor_audio.proj.weight"].shape[1],
        "frontend_widths": tuple(widths),
    }
    given = {
        "layer_norm_first": "layer_norm_first",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "dropout_input": "input_dropout",
        "encoder_layerdrop": "layerdrop",
        "feature_grad_mult": "feature_gradient_scale",
    }
    return sizes | {ours: settings[theirs] for theirs, ours in given.items() if theirs in settings}


def load_named(module: nn.Module, state: dict[str, Tensor], *, source: str) -> None:
    """Loads a state dict whole: every tensor of `module` must be there with its shape."""
    own = module.state_dict()
    missing = sorted(k for k in own if k not in state and not k.endswith("num_batches_tracked"))
    wrong = sorted(k for k in own if k in state and own[k].shape != state[k].shape)
    if missing or wrong:
        raise ValueError(
            f"{source} does not fit {type(module).__name__}: missing {missing[:5]} "
            f"({len(missing)} in all), of another shape {wrong[:5]} ({len(wrong)} in all)"
        )
    module.load_state_dict({k: state[k] for k in own if k in state}, strict=False)


class SavedModel(nn.Module):
    """A module that is built from one configuration and saved as a folder."""

    config_class: ClassVar[type]
    config: Any

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config.to_dict(), indent=1))
        state = OrderedDict((k, v.contiguous().clone()) for k, v in self.state_dict().items())
        save_file(state, folder / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Reads what `save_pretrained` wrote."""
        from safetensors.torch import load_file

        settings, weights = Path(folder) / "config.json", Path(folder) / "model.safetensors"
        for file in (settings, weights):
            if not file.exists():
                raise ValueError(f"folder must hold config.json and model.safetensors: no {file}")
        model = cls(cls.config_class(**json.loads(settings.read_text())))
        load_named(model, load_file(weights), source=str(weights))
        return model
