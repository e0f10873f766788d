"""The whole synthesis as a chain of resumable stages.

SAMPLED -> SANITISED -> KEPT | DROPPED -> RESPONDED -> TAGGED -> EMBEDDED -> DEDUPED -> FILTERED ->
EXPORTED. Each row is keyed by what determines it, and each stage appends to a journal of its own,
so that a run may end anywhere and continue with the same result.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from ritornello.common.chat import (
    CachedClient,
    ChatClient,
    Journal,
    TransformersClient,
    replicates,
)
from ritornello.common.jsonl import write_jsonl
from ritornello.common.models import load_minilm, load_smollm2, load_smollm2_tokenizer
from ritornello.common.runs.store import write_atomically
from ritornello.methods.magpie.config import MagpieConfig, check_filter
from ritornello.methods.magpie.dedup import NearestNeighborDeduplicator
from ritornello.methods.magpie.export import to_sharegpt
from ritornello.methods.magpie.filters import filter_rows, longest
from ritornello.methods.magpie.generator import (
    MULTI_TURN_SYSTEM,
    Instruction,
    MagpieGenerator,
    warn_if_endless,
)
from ritornello.methods.magpie.preferences import Reward, build_preferences
from ritornello.methods.magpie.sanitizer import drop_reason, sanitize_instruction
from ritornello.methods.magpie.statistics import data_card, summarize
from ritornello.methods.magpie.tags import JudgeTagger, LikelihoodTagger, Task
from ritornello.methods.magpie.templates import ChatTemplateParts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Encoder(Protocol):
    """Sentences to unit vectors, (sentences, width)."""

    def encode(self, sentences: list[str]) -> Tensor | np.ndarray:
        """One unit vector per sentence."""
        ...


# a request that failed or was refused: the text is none of the model's
_NO_ANSWER = ("error", "content_filter")


class MagpiePipeline:
    """Runs all stages into a folder.

    Args:
        config: what to make.
        llm: the aligned model that writes queries and answers; by default SmolLM2 from its package.
        tokenizer: its tokenizer; given where `llm` is.
        encoder: sentence embeddings for de-duplication; by default MiniLM from its package.
        judge: model for the tags; by default `llm`.
        reward: scores answers (`instruct_reward`); needed by filters that read it and by
            preference pairs.
        base_responder: answers of a base model, for `reward_difference`.

    Raises:
        ValueError: `llm` without `tokenizer` or the other way round, preference pairs without a
            reward, a filter that reads what is not made, a template that cannot be split, several
            turns with a template without system messages.
    """

    def __init__(
        self,
        config: MagpieConfig,
        *,
        llm: ChatClient | None = None,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        encoder: Encoder | None = None,
        judge: ChatClient | None = None,
        reward: Reward | None = None,
        base_responder: Callable[[Sequence[str]], list[str]] | None = None,
    ) -> None:
        if config.preference_k and reward is None:
            raise ValueError("preference_k > 0 needs a reward")
        if (llm is None) != (tokenizer is None):
            raise ValueError("llm and tokenizer belong together: give both or neither")
        check_filter(config, reward is not None, base_responder is not None)
        if llm is None or tokenizer is None:
            tokenizer = load_smollm2_tokenizer()
            llm = TransformersClient(load_smollm2(), tokenizer)
        self.config = config
        self._llm = llm
        self._judge = judge or llm
        self._encoder = encoder or load_minilm()
        self._reward = reward
        self._base_responder = base_responder
        self._parts = ChatTemplateParts.from_tokenizer(tokenizer, system=config.system)
        self._answer_parts = ChatTemplateParts.from_tokenizer(tokenizer)
        if config.turns > 1:
            self._parts.after([{"role": "system", "content": MULTI_TURN_SYSTEM}])

    def run(self, out_dir: str | Path) -> dict[str, object]:
        """Makes (or completes) the data set; returns its statistics.

        Writes raw.jsonl, final.jsonl, sharegpt.jsonl, preferences.jsonl, stats.json, README.md (the
        data card with the statistics) and the stages' journals.

        Raises:
            ValueError: the folder holds a run of another configuration or model.
        """
        out = Path(out_dir)
        out.mkdir(parents=True, exist_ok=True)
        self._claim(out)
        # every single answer is kept as it arrives; the journals keep whole rows
        llm = CachedClient(self._llm, out / "stages" / "answers.sqlite")
        generator = self._generator(llm)
        numbered = [{"id": self.row_id(i), "index": i} for i in range(self.config.n)]
        rows = self._stage(out, "sampled", numbered, lambda chunk: self._sample(generator, chunk))
        warn_if_endless(sum(row["natural_stop"] for row in rows), len(rows), generator)
        rows = [self._sanitise(row) for row in rows]
        write_jsonl(out / "raw.jsonl", rows)
        kept = [row for row in rows if row["state"] == "KEPT"]
        kept = self._stage(out, "responded", kept, lambda chunk: self._respond(generator, chunk))
        kept = [row for row in kept if row["response_finish_reason"] not in _NO_ANSWER]
        for task in self.config.tags:
            kept = self._stage(out, f"tagged_{task}", kept, self._tagger(task))
        if self._reward is not None:
            kept = self._stage(out, "rewarded", kept, self._rewards)
        kept = self._deduplicate(out, kept)
        final = [dict(row) for row in filter_rows(kept, self.config.filter)]
        if self.config.keep_longest is not None:
            final = [dict(row) for row in longest(final, self.config.keep_longest)]
        pairs = []
        if self.config.preference_k:
            sampled = self._stage(out, "alternatives", final, lambda c: self._alternatives(llm, c))
            pairs = build_preferences([row for row in sampled if len(row["responses"]) > 1])
        return self._export(out, rows, kept, final, pairs)

    def row_id(self, index: int) -> str:
        """Key of a row: hash of model, template, decoding, seed and index."""
        config = self.config
        decoding = asdict(self._generator(self._llm).instruction_params)
        content = [self._llm.model_id, self._parts.pre_query, decoding, config.seed, index]
        digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
        return f"magpie-{digest}"

    def _generator(self, llm: ChatClient) -> MagpieGenerator:
        config = self.config
        return MagpieGenerator(
            llm,
            self._parts,
            temperature=config.temperature,
            top_p=config.top_p,
            max_new_tokens=config.max_new_tokens,
            stop_at_newline=config.stop_at_newline,
            first_token_temperature=config.first_token_temperature,
            banned_first_ids=config.banned_first_ids,
            response_parts=self._answer_parts,
            response_tokens=config.response_tokens,
            seed=config.seed,
        )

    def _claim(self, out: Path) -> None:
        """The folder belongs to one configuration and one model."""
        mine = json.loads(json.dumps(asdict(self.config) | {"model": self._llm.model_id}))
        path = out / "config.json"
        if path.exists():
            theirs = json.loads(path.read_text())
            differing = sorted(k for k in mine | theirs if mine.get(k) != theirs.get(k))
            if differing:
                raise ValueError(f"{out} holds a run with another {', '.join(differing)}")
        else:
            write_atomically(path, json.dumps(mine, indent=1))

    def _stage(
        self,
        out: Path,
        name: str,
        rows: Sequence[Mapping[str, object]],
        compute: Callable[[Sequence[Mapping[str, object]]], Iterable[dict]],
    ) -> list[dict]:
        """Adds to each row what `compute` finds for it, chunk by chunk, once."""
        with Journal(out / "stages" / f"{name}.jsonl") as journal:
            done = {record.pop("id"): record for record in journal.records()}
            missing = [row for row in rows if row["id"] not in done]
            for start in range(0, len(missing), self.config.chunk):
                chunk = missing[start : start + self.config.chunk]
                for row, added in zip(chunk, compute(chunk), strict=True):
                    journal.append({"id": row["id"]} | added)
                    done[row["id"]] = added
        return [dict(row) | done[row["id"]] for row in rows]

    def _sample(self, generator: MagpieGenerator, chunk: Sequence[Mapping]) -> list[dict]:
        # the missing rows of an interrupted run need not be neighbours
        found: list[Instruction] = []
        for first, count in _consecutive([row["index"] for row in chunk]):
            found += generator.instructions(count, first=first)
        config = self.config
        created = datetime.now(UTC).date().isoformat()
        return [
            {
                "pre_query_template": self._parts.pre_query,
                "raw_instruction": instruction.text,
                "finish_reason": instruction.finish_reason,
                "natural_stop": instruction.natural_stop,
                "created": created,
                "gen_input_configs": {
                    "temperature": config.temperature,
                    "top_p": config.top_p,
                    "input_generator": self._llm.model_id,
                    "seed": config.seed,
                },
            }
            for instruction in found
        ]

    def _sanitise(self, row: Mapping[str, object]) -> dict:
        text, number = sanitize_instruction(
            str(row["raw_instruction"]), self.config.family, self.config.compat
        )
        reason = drop_reason(text, str(row["finish_reason"]))
        return dict(row) | {
            "instruction": text,
            "instruction_sanitize_class_num": number,
            "state": "KEPT" if reason is None else "DROPPED",
            "drop_reason": reason,
        }

    def _respond(self, generator: MagpieGenerator, chunk: Sequence[Mapping]) -> list[dict]:
        answers = generator.responses([str(row["instruction"]) for row in chunk])
        params = generator.response_params()
        configs = {
            "prompt": self._answer_parts.with_query("{instruction}"),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "repetition_penalty": 1.0,
            "max_tokens": params.max_tokens,
            "stop_tokens": list(params.stop),
            "output_generator": self._llm.model_id,
            "engine": type(self._llm).__name__,
        }
        added = [
            {
                "response": answer.text,
                "response_finish_reason": answer.finish_reason,
                "gen_response_configs": configs,
            }
            for answer in answers
        ]
        if self.config.turns > 1:
            rows = [dict(row) | new for row, new in zip(chunk, added, strict=True)]
            longer = generator.multi_turn(rows, self.config.turns)
            added = [
                {key: value for key, value in row.items() if key not in old}
                for row, old in zip(longer, chunk, strict=True)
            ]
        return added

    def _tagger(self, task: Task) -> Callable[[Sequence[Mapping]], list[dict]]:
        kind = JudgeTagger if self.config.tagger == "judge" else LikelihoodTagger
        tagger = kind(self._judge, task)
        return lambda chunk: tagger.tag([str(row["instruction"]) for row in chunk])

    def _rewards(self, chunk: Sequence[Mapping]) -> list[dict]:
        assert self._reward is not None
        instructions = [str(row["instruction"]) for row in chunk]
        rewards = self._reward(instructions, [str(row["response"]) for row in chunk])
        if self._base_responder is None:
            return [{"instruct_reward": reward} for reward in rewards]
        base = self._reward(instructions, self._base_responder(instructions))
        return [
            {"instruct_reward": ours, "reward_difference": ours - theirs}
            for ours, theirs in zip(rewards, base, strict=True)
        ]

    def _deduplicate(self, out: Path, rows: Sequence[Mapping]) -> list[dict]:
        if not rows:
            return []
        embeddings = self._encoder.encode([str(row["instruction"]) for row in rows])
        np.save(out / "stages" / "embeddings.npy", np.asarray(embeddings))
        found = NearestNeighborDeduplicator(self.config.dedup_threshold).fit(embeddings)
        similar = [None if i < 0 else rows[i]["id"] for i in found.min_similar_index]
        # a row without company has no distance: JSON knows no infinity
        distances = [float(d) if np.isfinite(d) else None for d in found.min_neighbor_distance]
        return [
            dict(row)
            | {
                "conversation_id": row["id"],
                "min_neighbor_distance": distances[i],
                "repeat_count": int(found.repeat_count[i]),
                "min_similar_conversation_id": similar[i],
            }
            for i, row in enumerate(rows)
        ]

    def _alternatives(self, llm: ChatClient, chunk: Sequence[Mapping]) -> list[dict]:
        assert self._reward is not None
        config = self.config
        k = config.preference_k
        params = replace(
            self._generator(llm).response_params(), temperature=config.preference_temperature
        )
        texts = [self._answer_parts.with_query(str(row["instruction"])) for row in chunk]
        prompts = [prompt for text in texts for prompt in replicates(text, k)]
        answers = llm.generate(prompts, params)
        asked = [str(row["instruction"]) for row in chunk for _ in range(k)]
        rewards = self._reward(asked, [answer.text for answer in answers])
        found = []
        for start in range(0, len(answers), k):
            chosen = [
                i for i in range(start, start + k) if answers[i].finish_reason not in _NO_ANSWER
            ]
            found.append(
                {
                    "responses": [answers[i].text for i in chosen],
                    "rewards": [rewards[i] for i in chosen],
                    "gen_responses_configs": {"temperature": params.temperature, "k": k},
                }
            )
        return found

    def _export(
        self, out: Path, rows: list[dict], kept: list[dict], final: list[dict], pairs: list[dict]
    ) -> dict[str, object]:
        write_jsonl(out / "final.jsonl", final)
        write_jsonl(out / "sharegpt.jsonl", to_sharegpt(final))
        write_jsonl(out / "preferences.jsonl", pairs)
        stats = summarize(rows, kept, final, pairs)
        write_atomically(out / "stats.json", json.dumps(stats, indent=1))
        card = data_card(stats, model=self._llm.model_id, pre_query=self._parts.pre_query)
        write_atomically(out / "README.md", card)
        return stats


def _consecutive(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring numbers as (first, length)."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs
