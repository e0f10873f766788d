"""The arms of part A: ways of getting user queries out of one aligned model; its engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from ritornello.common.chat import ChatClient
from ritornello.common.chat.vllm import load_vllm
from ritornello.methods.magpie.baselines import SelfInstructGenerator
from ritornello.methods.magpie.generator import DOMAIN_SYSTEMS, Instruction, MagpieGenerator
from ritornello.methods.magpie.templates import ChatTemplateParts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@cache
def shared_vllm(name_or_path: str, **options: Any) -> Any:
    """A vLLM engine that all parts of a process share: two would not fit on one device."""
    return load_vllm(name_or_path, **options)


class QuerySource(Protocol):
    """Anything that draws numbered queries."""

    def instructions(self, n: int, *, first: int = 0) -> Sequence[Instruction]: ...


@dataclass(frozen=True)
class TemplateArm:
    """Magpie with one choice of what the model is shown.

    Args:
        system: system turn: "default", None (bare user header), or a name in `DOMAIN_SYSTEMS`.
        pre_query: this text instead of a pre-query template; the stop tokens stay.
        temperature: of the draws.
        top_p: of the draws.
    """

    system: str | None = "default"
    pre_query: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0

    def source(
        self,
        llm: ChatClient,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_new_tokens: int,
        seed: int,
    ) -> QuerySource:
        system = DOMAIN_SYSTEMS.get(self.system or "", self.system)
        parts = ChatTemplateParts.from_tokenizer(tokenizer, system=system)
        if self.pre_query is not None:
            parts = replace(parts, pre_query=self.pre_query)
        # no newline stop: whether the model ends the turn by itself is what is measured
        return MagpieGenerator(
            llm,
            parts,
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=max_new_tokens,
            stop_at_newline=False,
            stop_words=(),
            seed=seed,
        )


@dataclass(frozen=True)
class SelfInstructArm:
    """Three seed tasks, the model writes the fourth.

    Args:
        temperature: of the draws.
        top_p: of the draws.
    """

    temperature: float = 1.0
    top_p: float = 1.0

    def source(
        self,
        llm: ChatClient,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_new_tokens: int,
        seed: int,
    ) -> QuerySource:
        return SelfInstructGenerator(
            llm,
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
