"""A language model as it might be served, and pools of its completions."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ritornello.common.cache import cached_directory
from ritornello.common.chat import (
    Completion,
    GenerationParams,
    Message,
    Prompt,
    TransformersClient,
    replicates,
)
from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot
from ritornello.methods.model_equality_testing import (
    CompletionSample,
    encode_tokens,
    encode_unicode,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Part of every pool's name: changes when the way of drawing does.
_DRAWN_BY = 1


@dataclass(frozen=True)
class Served:
    """What stands behind an endpoint.

    Args:
        weight_bits: round the decoder's linear weights to nearest with so many bits.
        group_size: input channels that share a scale; None for one scale an output channel.
        watermark_bias: added to the logits of a green quarter of the vocabulary, chosen by the
            previous token (Kirchenbauer et al.); 0 for none.
        temperature, top_p: of sampling.
        seed: of sampling.
        model: other weights than the reference's; None for those.
    """

    weight_bits: int | None = None
    group_size: int | None = None
    watermark_bias: float = 0.0
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    model: Callable[[], "PreTrainedModel"] | None = None

    def prepare(self) -> None:
        """Says before anything is sampled what is missing to serve it."""
        if getattr(self.model, "func", None) is load_bitsandbytes:
            require_bitsandbytes()

    def load(self, reference: Callable[[], "PreTrainedModel"]) -> "PreTrainedModel":
        """The model, altered."""
        model = (self.model or reference)()
        if self.weight_bits is not None:
            round_weights(model.get_decoder(), self.weight_bits, self.group_size)
        if self.watermark_bias:
            add_watermark(model, self.watermark_bias)
        return model

    def params(self, max_tokens: int) -> GenerationParams:
        return GenerationParams(
            max_tokens=max_tokens, temperature=self.temperature, top_p=self.top_p, seed=self.seed
        )

    def identity(self, reference: Callable[[], "PreTrainedModel"]) -> str:
        """Text that differs where the answers may differ."""
        settings = asdict(self) | {"kind": type(self).__name__, "model": self.model or reference}
        return json.dumps(settings, sort_keys=True, default=describe)


@torch.no_grad()
def round_weights(decoder: nn.Module, bits: int, group_size: int | None) -> None:
    """Symmetric round-to-nearest of all linear weights, in place, kept de-quantised."""
    if not 2 <= bits <= 8:
        raise ValueError(f"weight_bits must be in [2, 8], got {bits}")
    top = 2 ** (bits - 1) - 1
    for name, module in decoder.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        weight = module.weight
        if group_size is not None and weight.shape[1] % group_size:
            raise ValueError(
                f"group_size={group_size} must divide the {weight.shape[1]} inputs of {name}"
            )
        groups = weight.view(len(weight), -1, group_size or weight.shape[1])
        step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / top
        groups.copy_((groups / step).round().clamp(-top, top) * step)


def add_watermark(model: "PreTrainedModel", bias: float) -> None:
    """Adds the green list's bias to the model's logits wherever they are computed.

    With a context of one token the list after a position depends on the token at it alone, so the
    model itself can carry the watermark, whoever samples from it.
    """
    from transformers import WatermarkingConfig

    vocabulary = model.config.get_text_config().vocab_size
    processor = WatermarkingConfig(
        greenlist_ratio=0.25,
        bias=bias,
        hashing_key=15485863,
        seeding_scheme="lefthash",
        context_width=1,
    ).construct_processor(vocabulary, str(model.device))

    def shift(module: nn.Module, args: tuple, given: dict[str, Any], output: Any) -> Any:
        ids: Tensor = args[0] if args else given["input_ids"]
        logits = output.logits
        previous = ids[:, ids.shape[1] - logits.shape[1] :]
        flat = processor(previous.reshape(-1, 1), logits.reshape(-1, logits.shape[-1]))
        output.logits = flat.view_as(logits)
        return output

    model.register_forward_hook(shift, with_kwargs=True)


@dataclass(frozen=True)
class Source:
    """Where pools of completions come from.

    Args:
        model, tokenizer: called when they are needed.
        prompts: texts of the user's turn.
        prefill: how the answer begins, so that the model continues at once.
        per_prompt: completions of each prompt.
        max_tokens: of a completion.
        batch_rows: completions decoded at a time.
        characters: compare so many characters of each completion; None compares token ids.
    """

    model: Callable[[], "PreTrainedModel"]
    tokenizer: Callable[[], Any]
    prompts: Callable[[], list[str]]
    prefill: str
    per_prompt: int
    max_tokens: int
    batch_rows: int
    characters: int | None = None

    def asked(self) -> list[Prompt]:
        """The prompts as a client takes them."""
        return [Prompt((Message.user(text),), prefill=self.prefill) for text in self.prompts()]

    def draw(self, served: Served) -> list[list[Completion]]:
        """The pool of a served model, [prompt][completion]; drawn once, then cached."""
        key = json.dumps(
            [
                _DRAWN_BY,
                served.identity(self.model),
                describe(self.tokenizer),
                [prompt.content() for prompt in self.asked()],
                [self.per_prompt, self.max_tokens, torch.__version__],
            ]
        )
        digest = hashlib.sha256(key.encode()).hexdigest()[:20]
        folder = cached_directory(
            f"completion-pools/{digest}", lambda target: self._generate(served, target)
        )
        content = json.loads((folder / "completions.json").read_text(encoding="utf-8"))
        return [[Completion.from_json(record) for record in prompt] for prompt in content]

    def _generate(self, served: Served, folder: Path) -> None:
        client = TransformersClient(
            served.load(self.model), self.tokenizer(), max_batch_rows=self.batch_rows
        )
        content = []
        for prompt in self.asked():
            answers = client.generate(
                replicates(prompt, self.per_prompt), served.params(self.max_tokens)
            )
            content.append([answer.to_json() for answer in answers])
        (folder / "completions.json").write_text(json.dumps(content), encoding="utf-8")

    def sample(self, served: Served) -> CompletionSample:
        """The pool as codes; in token space the end token is kept and padding follows it."""
        pool = self.draw(served)
        prompts = [index for index, prompt in enumerate(pool) for _ in prompt]
        answers = [completion for prompt in pool for completion in prompt]
        if self.characters is None:
            codes = encode_tokens([answer.token_ids or () for answer in answers], self.max_tokens)
        else:
            codes = encode_unicode([answer.text for answer in answers], self.characters)
        return CompletionSample(prompts, codes, len(pool))


def require_bitsandbytes() -> None:
    """Says before anything is sampled that quantised loading cannot work here.

    Raises:
        UserError: no GPU, or the package is absent.
    """
    if not torch.cuda.is_available() or find_spec("bitsandbytes") is None:
        raise UserError("int8 and nf4 weights need a GPU and the package bitsandbytes")


def load_bitsandbytes(name_or_path: str, scheme: Literal["int8", "nf4"]) -> "PreTrainedModel":
    """A hub model under LLM.int8 or 4-bit NormalFloat, on the GPU.

    Raises:
        UserError: see `require_bitsandbytes`, or the checkpoint cannot be had.
    """
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    require_bitsandbytes()
    config = BitsAndBytesConfig(
        load_in_8bit=scheme == "int8",
        load_in_4bit=scheme == "nf4",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(
        hub_snapshot(name_or_path), quantization_config=config, device_map="cuda"
    )
    return model.eval()


def describe(made_by: Callable[[], Any]) -> str:
    """Name and arguments of a partial, the same in every process."""
    function = getattr(made_by, "func", made_by)
    arguments = sorted(getattr(made_by, "keywords", {}).items())
    return f"{function.__module__}.{function.__qualname__}{arguments}"
