"""The arms: a protocol, and who answers it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ritornello.common.chat import ChatClient
from ritornello.common.evaluation.baselines import (
    Policy,
    fixed_slot,
    oracle,
    saying,
    uniform,
    uniform_single,
    uniform_subset,
)
from ritornello.common.models import load_minilm
from ritornello.methods.k_halu import policy_client
from ritornello.methods.k_halu.policies import (
    by_support,
    lexical_support,
    noisy,
    sentence_support,
    single_pick,
    write_list,
    write_spaced_list,
)
from ritornello.methods.k_halu.prompts import EXAMPLE

KNOWN_SHARE = 0.85

POLICIES: Mapping[str, Callable[[int], Policy]] = {
    "oracle": lambda seed: oracle,
    "random_known_count": uniform,
    "random_subset": uniform_subset,
    "random_single": uniform_single,
    "always_first": lambda seed: fixed_slot(0),
    "always_last": lambda seed: fixed_slot(4),
    "noisy_judge": lambda seed: noisy(KNOWN_SHARE, seed),
    "noisy_pick": lambda seed: single_pick(noisy(KNOWN_SHARE, seed)),
    "lexical": lambda seed: by_support(lexical_support),
    "minilm": lambda seed: by_support(sentence_support(load_minilm().encode)),
}


@dataclass(frozen=True)
class Baseline:
    """A policy that answers a protocol.

    Attributes:
        protocol: questions → task.
        policy: a name in `POLICIES`, or `list_copier`, which writes the example list.
        languages: in which it is measured.
        spaced: write lists with a blank before each comma.
    """

    protocol: Callable[..., Any]
    policy: str
    languages: Sequence[str] = ("en",)
    spaced: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES and self.policy != "list_copier":
            accepted = [*POLICIES, "list_copier"]
            raise ValueError(f"policy must be one of {accepted}, got {self.policy!r}")

    def client(self, task: Any, seed: int) -> ChatClient:
        if self.policy == "list_copier":
            return saying(EXAMPLE, name="list_copier")
        write = write_spaced_list if self.spaced else write_list
        return policy_client(task, POLICIES[self.policy](seed), self.policy, write=write)


@dataclass(frozen=True)
class Model:
    """The part's model under one protocol.

    Attributes:
        protocol: questions → task.
        languages: in which it is asked.
        block: questions asked at a time; None: as the part says.
    """

    protocol: Callable[..., Any]
    languages: Sequence[str] = ("en",)
    block: int | None = None


@dataclass(frozen=True)
class PublishedModel:
    """A model whose per-item results were published."""

    name: str
