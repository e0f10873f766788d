"""Checkpoints by hub id or local folder, with the network's absence said at once."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ritornello.common.errors import UserError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ritornello.common.models.embedded import SentenceEncoder


def resolve_device(device: str) -> torch.device:
    """Turns `auto`, `cpu`, `cuda` or `cuda:1` into a device that is there.

    Raises:
        UserError: a GPU was asked for and there is none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device must be auto, cpu, cuda or cuda:<n>, got {device!r}") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={device} needs a CUDA GPU and none is visible; device=cpu works")
    return chosen


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Turns `float32`, `bfloat16` or `float16` into a torch dtype."""
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise UserError(f"dtype must be float32, bfloat16 or float16, got {dtype!r}")
    return found


# What repositories hold beside the files that transformers reads; as much again, or more.
_OTHER_FORMATS = [
    "original/*",
    "consolidated*",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.onnx",
    "*.onnx_data",
]
_PICKLED_WEIGHTS = ["*.bin", "*.pt", "*.pth"]  # left out where there are safetensors


def hub_snapshot(
    name_or_path: str,
    *,
    repo_type: str = "model",
    revision: str | None = None,
    weights: bool = False,
    only: str | None = None,
) -> Path:
    """A local folder with the files of a hub repository, or the folder itself if it is one.

    The hub's cache is tried first and the network once, so that its absence is told in a second
    rather than after minutes of retries. Of a model's repository the copies of the weights in
    other formats stay where they are.

    Args:
        weights: a folder or the cache counts only if all files of the weights are in it.
        only: a folder of the repository; nothing else is fetched or looked for.

    Raises:
        UserError: neither a folder, nor in the cache, nor reachable; or a folder without weights.
    """
    local = Path(name_or_path).expanduser()
    if local.is_dir():
        if weights and not _has_weights(local):
            raise UserError(
                f"{name_or_path} holds no whole checkpoint: it has neither model.safetensors or "
                "pytorch_model.bin nor every file that an index names"
            )
        return local
    if name_or_path.startswith((".", "/", "~")):
        raise UserError(f"there is no folder {name_or_path}")
    from huggingface_hub import HfApi, snapshot_download

    where = {"repo_id": name_or_path, "repo_type": repo_type, "revision": revision}
    where["allow_patterns"] = None if only is None else [f"{only}/*"]
    others = _OTHER_FORMATS if repo_type == "model" else []
    for ignored in (others, [*others, *_PICKLED_WEIGHTS]):
        try:
            found = snapshot_download(**where, ignore_patterns=ignored, local_files_only=True)
        except Exception:
            continue
        if (not weights or _has_weights(Path(found))) and (Path(found) / (only or "")).is_dir():
            return Path(found)
    remedy = (
        f"Either go online, or download {name_or_path} elsewhere "
        f"(hf download {name_or_path} --repo-type {repo_type}) and pass the folder's path instead"
    )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise UserError(
            f"{name_or_path} is not in the cache, or not all of it, and HF_HUB_OFFLINE is set. "
            f"{remedy}"
        )
    try:
        info = HfApi().repo_info(name_or_path, repo_type=repo_type, revision=revision, timeout=10)
        names = [file.rfilename for file in getattr(info, "siblings", None) or []]
        if repo_type == "model" and any(name.endswith(".safetensors") for name in names):
            others = [*others, *_PICKLED_WEIGHTS]
        return Path(snapshot_download(**where, ignore_patterns=others))
    except Exception as error:
        raise UserError(f"{name_or_path} cannot be fetched ({error}). {remedy}") from error


def _has_weights(folder: Path) -> bool:
    """Whether a snapshot has weights, and every file that an index of them names."""
    for index in folder.glob("*.index.json"):
        files = set(json.loads(index.read_text())["weight_map"].values())
        if all((folder / file).exists() for file in files):
            return True
    names = ("model", "pytorch_model", "adapter_model")
    return any((folder / f"{n}.{kind}").exists() for n in names for kind in ("safetensors", "bin"))


def check_checkpoint(name_or_path: str, revision: str | None = None) -> None:
    """Fetches a model of transformers and opens its files, without loading the weights.

    Raises:
        UserError: the checkpoint cannot be had, is not whole or damaged.
    """
    from safetensors import safe_open
    from transformers import AutoConfig

    folder = hub_snapshot(name_or_path, revision=revision, weights=True)
    opened = folder
    try:
        if not (folder / "adapter_config.json").is_file():
            AutoConfig.from_pretrained(folder, local_files_only=True)
        for opened in sorted(folder.glob("*.safetensors")):
            with safe_open(opened, "pt"):
                pass
    except Exception as error:
        raise UserError(f"{opened} is not a usable checkpoint: {one_line(error)}") from error


def check_architecture(
    loader: Callable[..., Any], accepts: Callable[["PreTrainedModel"], object]
) -> None:
    """Shows `accepts` the model that a loader will load, still without weights.

    Args:
        loader: a partial call with `name_or_path`; another one is passed over.
        accepts: raises ValueError for what it cannot use.

    Raises:
        UserError: the model is not accepted.
    """
    given = getattr(loader, "keywords", {})
    if "name_or_path" not in given:
        return
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = hub_snapshot(given["name_or_path"], revision=given.get("revision"))
    if not (folder / "config.json").is_file():  # an adapter
        return
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    try:
        accepts(model)
    except ValueError as error:
        raise UserError(f"{given['name_or_path']}: {error}") from error


def load_causal_lm(
    name_or_path: str,
    dtype: str | torch.dtype = "float32",
    device: str = "auto",
    revision: str | None = None,
) -> "PreTrainedModel":
    """A causal language model of transformers, in evaluation mode.

    Raises:
        UserError: the checkpoint cannot be had, is damaged, or the device is not there.
    """
    from transformers import AutoModelForCausalLM

    place, kind = resolve_device(device), resolve_dtype(dtype)
    folder = hub_snapshot(name_or_path, revision=revision, weights=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, local_files_only=True)
    except Exception as error:
        raise UserError(f"{name_or_path} is not a usable causal language model: {error}") from error
    model.to(place)  # type: ignore[arg-type]  # transformers' stub hides Module.to
    return model.eval()


def load_tokenizer(name_or_path: str, revision: str | None = None) -> "PreTrainedTokenizerFast":
    """The tokenizer of a checkpoint, by hub id or folder."""
    from transformers import AutoTokenizer

    folder = hub_snapshot(name_or_path, revision=revision)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise UserError(f"{name_or_path} has no usable tokenizer: {one_line(error)}") from error


def load_sentence_encoder(
    name_or_path: str, device: str = "auto", revision: str | None = None, max_tokens: int = 384
) -> "SentenceEncoder":
    """A mean-pooled sentence encoder such as all-mpnet-base-v2, by hub id or folder.

    Raises:
        UserError: the checkpoint cannot be had, is damaged, or the device is not there.
    """
    from transformers import AutoModel

    from ritornello.common.models.embedded import SentenceEncoder

    place, folder = resolve_device(device), hub_snapshot(name_or_path, revision=revision)
    tokenizer = load_tokenizer(str(folder))
    try:
        model = AutoModel.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise UserError(f"{name_or_path} is not a usable sentence encoder: {error}") from error
    return SentenceEncoder(model.to(place).eval(), tokenizer, max_tokens=max_tokens)
