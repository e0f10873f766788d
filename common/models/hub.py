"""Checkpoints by hub id or local folder, with the network's absence said at once."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ritornello.common.errors import UserError

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


def hub_snapshot(
    name_or_path: str, *, repo_type: str = "model", revision: str | None = None
) -> Path:
    """A local folder with the files of a hub repository, or the folder itself if it is one.

    The hub's cache is tried first and the network once, so that its absence is told in a second
    rather than after minutes of retries.

    Raises:
        UserError: neither a folder, nor in the cache, nor reachable.
    """
    local = Path(name_or_path).expanduser()
    if local.is_dir():
        return local
    if name_or_path.startswith((".", "/", "~")):
        raise UserError(f"there is no folder {name_or_path}")
    from huggingface_hub import HfApi, snapshot_download

    where = {"repo_id": name_or_path, "repo_type": repo_type, "revision": revision}
    try:
        return Path(snapshot_download(**where, local_files_only=True))
    except Exception:
        pass
    remedy = (
        f"Either go online, or download {name_or_path} elsewhere "
        f"(hf download {name_or_path} --repo-type {repo_type}) and pass the folder's path instead"
    )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise UserError(f"{name_or_path} is not in the cache and HF_HUB_OFFLINE is set. {remedy}")
    try:
        HfApi().repo_info(name_or_path, repo_type=repo_type, revision=revision, timeout=10)
        return Path(snapshot_download(**where))
    except Exception as error:
        raise UserError(f"{name_or_path} cannot be fetched ({error}). {remedy}") from error


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
    folder = hub_snapshot(name_or_path, revision=revision)
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
        raise UserError(f"{name_or_path} has no usable tokenizer: {error}") from error


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
