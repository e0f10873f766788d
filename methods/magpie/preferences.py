"""Preference pairs: of k answers the best against the worst, and rewards that rank them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from ritornello.common.chat import ChatClient, Message, Prompt
from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot, load_tokenizer, resolve_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BLANK_REWARD = -20.0  # nats per token: below every answer that says something
Reward = Callable[[Sequence[str], Sequence[str]], list[float]]  # instructions, responses


def build_preferences(
    rows: Sequence[Mapping[str, Any]], *, ties: Literal["drop", "keep"] = "drop"
) -> list[dict]:
    """Chosen = highest reward, rejected = lowest; the first index among equals.

    Args:
        rows: with `instruction`, `responses` and as many `rewards` (>= 2), or `rewards_armorm`
            ([{"score": ...}], as the published data sets write them).
        ties: rows whose rewards are all equal hold no preference and are dropped; the official
            code keeps them, with one answer on both sides.

    Returns:
        New rows with `rewards_armorm`, `chosen` and `rejected` (messages) added.

    Raises:
        ValueError: fewer than two responses, unequal lengths, a reward that is not finite.
    """
    if ties not in ("drop", "keep"):
        raise ValueError(f"ties must be 'drop' or 'keep', got {ties!r}")
    pairs = []
    for row in rows:
        given = row.get("rewards")
        if given is None:
            given = [entry["score"] for entry in row["rewards_armorm"]]
        rewards = [float(value) for value in given]
        responses = list(row["responses"])
        if len(rewards) != len(responses) or len(rewards) < 2:
            raise ValueError(
                "rows need as many rewards as responses and at least two, "
                f"got {len(rewards)} and {len(responses)}"
            )
        if not all(map(math.isfinite, rewards)):
            raise ValueError(f"rewards must be finite, got {rewards}")
        best, worst = max(rewards), min(rewards)
        if best == worst and ties == "drop":
            continue
        pair = {key: value for key, value in row.items() if key != "rewards"}
        pair["rewards_armorm"] = [{"score": value} for value in rewards]
        for side, index in (("chosen", rewards.index(best)), ("rejected", rewards.index(worst))):
            pair[side] = [
                {"role": "user", "content": row["instruction"]},
                {"role": "assistant", "content": responses[index]},
            ]
        pairs.append(pair)
    return pairs


class LikelihoodReward:
    """A stand-in where no reward model is at hand: how well an answer fits its question.

    Mean token log-probability of the response after the question, minus the same after an
    unrelated question: what of the response's likelihood is owed to what was asked, in nats per
    token. It is no measure of quality in the paper's sense. Blank responses get -20.

    Args:
        llm: a client that scores continuations.
        unrelated: the question to compare with.
    """

    def __init__(self, llm: ChatClient, *, unrelated: str = "Say something.") -> None:
        self._llm = llm
        self._unrelated = unrelated

    def __call__(self, instructions: Sequence[str], responses: Sequence[str]) -> list[float]:
        written = [i for i, response in enumerate(responses) if response.strip()]
        rewards = [_BLANK_REWARD] * len(responses)
        if not written:
            return rewards
        # one prompt per question, however many answers it has
        places: dict[str, list[int]] = {}
        for i in written:
            places.setdefault(instructions[i], []).append(i)
        groups = [*places.values(), written]
        prompts = [Prompt((Message.user(text),)) for text in (*places, self._unrelated)]
        options = [[responses[i] for i in group] for group in groups]
        *own, unrelated = self._llm.score_continuations(prompts, options)
        base = dict(zip(written, unrelated.mean, strict=True))
        for group, scores in zip(groups, own, strict=False):
            for i, fit in zip(group, scores.mean, strict=True):
                rewards[i] = fit - base[i]
        return rewards


class SequenceReward:
    """A reward model with a sequence-classification head (FsfairX, ArmoRM, ...).

    Args:
        model: `AutoModelForSequenceClassification`, possibly with remote code; the first score
            (or the attribute `score` of its output) is the reward.
        tokenizer: its tokenizer with a chat template.
        batch_size: conversations per forward pass.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        *,
        batch_size: int = 8,
    ) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._batch_size = batch_size

    @torch.inference_mode()
    def __call__(self, instructions: Sequence[str], responses: Sequence[str]) -> list[float]:
        texts = [
            str(
                self._tokenizer.apply_chat_template(
                    [
                        {"role": "user", "content": instruction},
                        {"role": "assistant", "content": response},
                    ],
                    tokenize=False,
                )
            )
            for instruction, response in zip(instructions, responses, strict=True)
        ]
        rewards: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            batch = self._tokenizer(
                texts[start : start + self._batch_size],
                add_special_tokens=False,  # the template holds them
                padding=self._batch_size > 1,
                return_tensors="pt",
            ).to(self._model.device)
            output = self._model(**batch)
            scores = output.score if "score" in output else output.logits[:, 0]
            rewards += scores.reshape(-1).float().tolist()
        return rewards


def load_sequence_reward(
    name_or_path: str, *, device: str = "auto", trust_remote_code: bool = False
) -> SequenceReward:
    """A reward model from the hub or a folder, in bfloat16.

    Args:
        name_or_path: hub id or folder.
        device: where it runs.
        trust_remote_code: run the model's own code, which ArmoRM needs.

    Raises:
        UserError: the checkpoint cannot be had or is damaged, or the device is not there.
    """
    from transformers import AutoModelForSequenceClassification

    place, folder = resolve_device(device), hub_snapshot(name_or_path)
    tokenizer = load_tokenizer(str(folder))
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=torch.bfloat16,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
        )
    except Exception as error:
        raise UserError(f"{name_or_path} is not a usable reward model: {error}") from error
    # the score is read at the last token that is no padding: model and tokenizer must agree on it,
    # and where there is none, an end token in its place would be skipped as padding
    model.config.pad_token_id = tokenizer.pad_token_id
    rows = 1 if tokenizer.pad_token_id is None else 8
    return SequenceReward(model.to(place), tokenizer, batch_size=rows)
