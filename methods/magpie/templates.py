"""What stands before and after a user's query, derived from any tokenizer's chat template.

The pre-query template T_pre is all that the model is given in step 1 (the paper's "instruction
generation"); T_pre + query + T_post is what it answers in step 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SENTINEL = "QXZSENTINELZXQ"
_OTHER_SENTINELS = ("KJVFIRSTVJK", "WYBSECONDBYW")
_REAL_QUERY = "How do I spell «naïve» — and why?\nGive two reasons: a) and b)."

Turn = dict[str, str]


@dataclass(frozen=True)
class ChatTemplateParts:
    """The parts of one chat template around a user's query.

    Attributes:
        pre_query: T_pre: everything before the query, special tokens as text.
        post_query: T_post: everything from the query's end to where the answer begins.
        stop_ids: special token ids that end a user's turn or an answer.
        stop_strings: texts that end a user's turn.
        trims_content: whether the template strips blanks around a message.
        system: the system message in `pre_query`: None, "default" (what the template puts in by
            itself, maybe nothing) or its text.
    """

    pre_query: str
    post_query: str
    stop_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    trims_content: bool
    system: str | None
    tokenizer: "PreTrainedTokenizerBase" = field(repr=False, compare=False)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        system: Literal["default"] | str | None = "default",
    ) -> "ChatTemplateParts":
        """Splits the tokenizer's template around a sentinel and checks the split on a real query.

        Args:
            tokenizer: any tokenizer with a chat template.
            system: "default" keeps a system turn that the template adds by itself (models trained
                with one need it); None leaves it out; other text is used as the system message,
                which steers the domain of the queries.

        Raises:
            ValueError: no chat template; a template that cannot be split, has no system role, or
                has nothing that ends a turn.
        """
        if not tokenizer.chat_template:
            raise ValueError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat_template: Magpie needs an "
                "aligned (chat) model, or set tokenizer.chat_template"
            )
        messages = [] if system in (None, "default") else [_turn("system", system)]
        pre, post = _split(tokenizer, [*messages, _turn("user", _SENTINEL)], _SENTINEL)
        if messages and system is not None and system.strip() not in pre:
            raise ValueError("the chat template drops system messages: use system='default'")
        if system is None:
            pre = _without_default_system(tokenizer, pre)
        padded = _render(tokenizer, [*messages, _turn("user", f"  {_SENTINEL}  ")], prompt=True)
        trims = f"  {_SENTINEL}  " not in padded
        stop_ids, stop_strings = _stops(tokenizer, post)
        parts = cls(pre, post, stop_ids, stop_strings, trims, system, tokenizer)
        if system is not None:
            expected = _render(tokenizer, [*messages, _turn("user", _REAL_QUERY)], prompt=True)
            if parts.with_query(_REAL_QUERY) != expected:
                raise ValueError(
                    "the chat template changes the text of a message, so it cannot be split into "
                    "pre-query and post-query parts"
                )
        return parts

    @property
    def pre_query_ids(self) -> list[int]:
        """Token ids of T_pre; its special tokens are there as text, so none is added."""
        return self.tokenizer(self.pre_query, add_special_tokens=False)["input_ids"]

    def with_query(self, query: str) -> str:
        """T_pre + query + T_post, the input of step 2."""
        return self.pre_query + (query.strip() if self.trims_content else query) + self.post_query

    def after(self, history: Sequence[Turn]) -> str:
        """The text up to where the next user query begins, after some turns (for multi-turn)."""
        turns = [*history, _turn("user", _SENTINEL)]
        return _split(self.tokenizer, turns, _SENTINEL)[0]

    def render(self, history: Sequence[Turn]) -> str:
        """A conversation up to where the answer begins."""
        return _render(self.tokenizer, list(history), prompt=True)


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _render(tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn], *, prompt: bool) -> str:
    try:
        rendered = tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=prompt
        )
    except Exception as error:
        roles = [turn["role"] for turn in turns]
        raise ValueError(f"the chat template cannot render roles {roles}: {error}") from error
    assert isinstance(rendered, str)
    return rendered


def _split(
    tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn], sentinel: str
) -> tuple[str, str]:
    pieces = _render(tokenizer, turns, prompt=True).split(sentinel)
    if len(pieces) != 2:
        raise ValueError(
            f"the chat template writes a user message {len(pieces) - 1} times: it cannot be split"
        )
    return pieces[0], pieces[1]


def _without_default_system(tokenizer: "PreTrainedTokenizerBase", pre: str) -> str:
    """T_pre as it would be had the template not added a system turn of its own."""
    first, second = _OTHER_SENTINELS
    turns = [_turn("user", "q"), _turn("assistant", first), _turn("user", second)]
    rendered = _render(tokenizer, turns, prompt=False)
    between = rendered.split(first)[1].split(second)[0]
    turn_end = rendered.split(second)[1]
    bos = str(tokenizer.bos_token or "")
    if between.endswith(pre.removeprefix(bos)):
        return pre  # all of T_pre opens every user turn: there is no system turn
    header = between.removeprefix(turn_end)
    if header == between or not header or not pre.endswith(header):
        raise ValueError(
            "the system turn that the chat template adds cannot be told from the user header: "
            "use system='default'"
        )
    opens = bool(bos) and pre.startswith(bos) and not header.startswith(bos)
    return (bos if opens else "") + header


def _stops(
    tokenizer: "PreTrainedTokenizerBase", post: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Special ids in T_post and the configured end of text; their texts, or T_post's own."""
    special = set(tokenizer.all_special_ids)
    special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    in_post = [i for i in tokenizer(post, add_special_tokens=False)["input_ids"] if i in special]
    ids = dict.fromkeys(in_post)
    if tokenizer.eos_token_id is not None:
        ids[tokenizer.eos_token_id] = None
    if not ids:
        raise ValueError("neither the chat template nor the tokenizer has a token that ends a turn")
    strings = list(tokenizer.convert_ids_to_tokens(list(ids)))
    if not in_post and post.strip():
        strings.append(post.strip())  # the turn ends with plain text, e.g. "ASSISTANT:"
    return tuple(ids), tuple(strings)
