"""Magpie: does the pre-query template draw user queries, exactly and in practice?

Part `templates` compares what a real model writes after several beginnings; part `toy_world`
compares extracted queries with a known distribution; part `pipeline` makes a data set and
fine-tunes on it; part `decoding` makes one for every temperature and nucleus of a grid.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ritornello.common.chat import (
    ChatClient,
    GenerationParams,
    Message,
    Prompt,
    TransformersClient,
    VLLMClient,
    replicates,
)
from ritornello.common.chat.vllm import require_vllm
from ritornello.common.jsonl import read_jsonl, write_jsonl
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement, UserError
from ritornello.common.training.language_model_sft import SFTSettings
from ritornello.common.training.preference import PreferenceSettings, text_pair_logprobs
from ritornello.common.training.shared import train_once
from ritornello.experiments.magpie import toy_world as toy
from ritornello.experiments.magpie.figures import figures
from ritornello.experiments.magpie.sources import SelfInstructArm, TemplateArm
from ritornello.methods.magpie.config import MagpieConfig
from ritornello.methods.magpie.dedup import NearestNeighborDeduplicator
from ritornello.methods.magpie.export import to_trl_sft
from ritornello.methods.magpie.finetune import align_on_pairs, finetune_on_rows, usable_pairs
from ritornello.methods.magpie.generator import MagpieGenerator
from ritornello.methods.magpie.metrics import distinct_2, is_mathematical, is_request
from ritornello.methods.magpie.pipeline import MagpiePipeline
from ritornello.methods.magpie.preferences import LikelihoodReward, Reward
from ritornello.methods.magpie.tags import DIFFICULTIES, QUALITIES
from ritornello.methods.magpie.templates import ChatTemplateParts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "DecodingStudy",
    "Extraction",
    "PipelineStudy",
    "TemplateStudy",
    "ToyWorldStudy",
    "figures",
]


@dataclass
class LanguageModelStudy(Experiment):
    """What the parts on a real model share.

    Args:
        model, tokenizer, encoder: loaders.
        engine: "transformers" batches in this process; "vllm" takes the model's name to vLLM.
    """

    model: Callable[[], "PreTrainedModel"]
    tokenizer: Callable[[], "PreTrainedTokenizerBase"]
    encoder: Callable[[], object]
    engine: Literal["transformers", "vllm"]

    def prepare(self) -> None:
        if self.engine == "vllm":
            require_vllm()

    @cached_property
    def loaded_tokenizer(self) -> "PreTrainedTokenizerBase":
        return self.tokenizer()

    @cached_property
    def loaded_encoder(self):
        return self.encoder()

    @cached_property
    def llm(self) -> ChatClient:
        if self.engine == "vllm":
            engine = self.model()
            return VLLMClient(engine, model_id=engine.llm_engine.model_config.model)
        return TransformersClient(self.model(), self.loaded_tokenizer)


@dataclass
class TemplateStudy(LanguageModelStudy):
    """Part A: queries per beginning, at an equal budget.

    Args:
        samples: queries per arm and seed.
        max_new_tokens: budget of a query.
    """

    samples: int
    max_new_tokens: int

    def measure(
        self, arm: TemplateArm | SelfInstructArm, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        source = arm.source(
            self.llm, self.loaded_tokenizer, max_new_tokens=self.max_new_tokens, seed=cell.seed
        )
        drawn = source.instructions(self.samples)
        texts = [query.text for query in drawn]
        write_jsonl(context.artifacts / "queries.jsonl", [{"instruction": text} for text in texts])
        stops = [float(query.natural_stop) for query in drawn]
        yield Measurement("natural_stop", _mean(stops), samples=stops)
        # (k + 1) / (n + 2): a ratio of rates needs rates that are not zero
        yield Measurement("smoothed_stop_rate", (sum(stops) + 1) / (len(stops) + 2))
        requests = [float(is_request(text)) for text in texts]
        yield Measurement("request", _mean(requests), samples=requests)
        mathematical = [float(is_mathematical(text)) for text in texts]
        yield Measurement("mathematical", _mean(mathematical), samples=mathematical)
        yield Measurement("distinct_2", distinct_2(texts))
        embeddings = self.loaded_encoder.encode(texts)
        found = NearestNeighborDeduplicator().fit(embeddings)
        distances = found.min_neighbor_distance.tolist()
        yield Measurement("min_neighbor_distance", _mean(distances), samples=distances)
        np.save(context.artifacts / "embeddings.npy", np.asarray(embeddings))
        lengths = [float(len(query.token_ids or ())) for query in drawn]
        yield Measurement("query_tokens", _mean(lengths), unit="tokens", samples=lengths)


@dataclass(frozen=True)
class Extraction:
    """One arm of the toy world.

    Args:
        loss_on: what the model was trained on: "all" tokens or the "assistant" turn alone.
        prompt: "template" (Magpie) or "few_shot" (a numbered list of three known queries).
        temperature: of the extraction.
        top_p: of the extraction.
    """

    loss_on: Literal["all", "assistant"] = "all"
    prompt: Literal["template", "few_shot"] = "template"
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass
class ToyWorldStudy(Experiment):
    """Part B: extracted against true query distribution.

    Args:
        queries: size of the world.
        steps: training steps of the model.
        samples: extracted queries.
    """

    queries: int
    steps: int
    samples: int

    def measure(self, arm: Extraction, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        world = toy.make_world(self.queries, seed=cell.seed)
        # one folder for the cells of a run
        client, parts = self._client(arm.loss_on, world, cell.seed, context.scratch.parent)
        texts = self._extract(arm, world, client, parts, cell.seed)
        counts, others = toy.query_counts(world, texts)
        reach = toy.decoded_distribution(world, temperature=arm.temperature, top_p=arm.top_p)
        yield Measurement(
            "total_variation", toy.total_variation(counts, others, world.probabilities)
        )
        yield Measurement("distance_to_expected", toy.total_variation(counts, others, reach))
        yield Measurement("coverage", float((counts > 0).mean()))
        yield Measurement("expected_coverage", float((1 - (1 - reach) ** self.samples).mean()))
        yield Measurement("outside", others / len(texts))
        np.savez(
            context.artifacts / "counts.npz", counts=counts, truth=world.probabilities, reach=reach
        )

    def _extract(
        self,
        arm: Extraction,
        world: toy.ToyWorld,
        client: TransformersClient,
        parts: ChatTemplateParts,
        seed: int,
    ) -> list[str]:
        if arm.prompt == "template":
            generator = MagpieGenerator(
                client,
                parts,
                temperature=arm.temperature,
                top_p=arm.top_p,
                max_new_tokens=12,
                stop_at_newline=False,
                stop_words=(),
                seed=seed,
            )
            return [query.text for query in generator.instructions(self.samples)]
        rng = np.random.default_rng([seed, 2])
        prompts = [
            replicates(toy.few_shot_prompt(world, rng), 1, first=index)[0]
            for index in range(self.samples)
        ]
        params = GenerationParams(
            max_tokens=12,
            temperature=arm.temperature,
            top_p=arm.top_p,
            stop_token_ids=parts.stop_ids,
            seed=seed,
        )
        return [answer.text.strip() for answer in client.generate(prompts, params)]

    def _client(
        self, loss_on: str, world: toy.ToyWorld, seed: int, shared: Path
    ) -> tuple[TransformersClient, ChatTemplateParts]:
        """The trained model of a seed: trained by the first arm that needs it, in any worker."""
        tokenizer = toy.toy_tokenizer(world)
        model = train_once(
            shared / f"toy-{loss_on}-{seed}.safetensors",
            train=lambda: toy.train_toy_model(
                world, tokenizer, loss_on=loss_on, steps=self.steps, seed=seed
            ),
            build=lambda: toy.build_toy_model(tokenizer, seed=seed),
        )
        client = TransformersClient(model, tokenizer, max_batch_rows=500)
        return client, ChatTemplateParts.from_tokenizer(tokenizer)


@dataclass
class PipelineStudy(LanguageModelStudy):
    """Part C: queries, answers, tags, de-duplication, filter, pairs, then training on them.

    Args:
        sft: supervised fine-tuning on the final rows; None leaves it out.
        dpo: preference optimisation of the fine-tuned model on the pairs; None leaves it out.
        held_out: share of the rows (or pairs) that measures the training instead of taking part.
        student: loader of the model to train; None takes the one that wrote the data, with LoRA.
        reward: loader of the reward model; None takes the likelihood stand-in.
    """

    sft: SFTSettings | None
    dpo: PreferenceSettings | None
    held_out: float
    student: "Callable[[], PreTrainedModel] | None"
    reward: Callable[[], Reward] | None

    def __post_init__(self) -> None:
        if self.dpo is not None and (self.student is None or self.sft is None):
            raise UserError(
                "dpo goes on from a fine-tuned model: it needs sft, and a student of its own, as "
                f"the model that wrote the data stays as it is; got sft={self.sft} and "
                f"student={self.student}"
            )

    def measure(self, arm: MagpieConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        out = context.artifacts / "data"
        pipeline = MagpiePipeline(
            replace(arm, seed=cell.seed),
            llm=self.llm,
            tokenizer=self.loaded_tokenizer,
            encoder=self.loaded_encoder,
            reward=LikelihoodReward(self.llm) if self.reward is None else self.reward(),
        )
        stats = pipeline.run(out)
        kept = max(1, stats["kept"])
        yield Measurement("kept_share", stats["kept"] / stats["sampled"])
        yield Measurement("request_share", stats["requests"] / kept)
        yield Measurement("repeat_share", stats["repeats"] / kept)
        yield Measurement("preference_pairs", stats["preference_pairs"])
        if "agreement_with_rule_tags" in stats:
            yield Measurement("agreement_with_rule_tags", stats["agreement_with_rule_tags"])
        rows = [row for row in read_jsonl(out / "final.jsonl") if row["response"].strip()]
        if self.sft is None or len(rows) < 4:
            return
        student = self.llm.model if self.student is None else self.student()
        tuned = yield from self._fine_tune(student, rows, cell.seed, context)
        if self.dpo is not None:
            yield from self._align(tuned, read_jsonl(out / "preferences.jsonl"), cell.seed, context)
        elif self.sft.lora_rank:
            tuned.unload()  # the shared model is as it was

    def _fine_tune(
        self, student: "PreTrainedModel", rows: list[dict], seed: int, context: CellContext
    ) -> Generator[Measurement, None, Any]:
        """Trains on most rows and scores the answers of all, before and after."""
        assert self.sft is not None
        before = self._answer_losses(student, rows)
        split = max(1, round(len(rows) * self.held_out))
        settings = replace(self.sft, seed=seed)
        folder = context.scratch / "sft"
        tuned = finetune_on_rows(
            student, self.loaded_tokenizer, rows[split:], settings, output_dir=folder
        )
        after = self._answer_losses(student, rows)
        change = [b - a for a, b in zip(before, after, strict=True)]
        for name, part in (("held_out", change[:split]), ("trained", change[split:])):
            yield Measurement(f"{name}_loss_change", _mean(part), unit="nats", samples=part)
        return tuned

    def _align(
        self, tuned: Any, rows: list[dict], seed: int, context: CellContext
    ) -> Iterator[Measurement]:
        """DPO on most pairs; what it does to the margins of the others."""
        assert self.dpo is not None
        limit, tokenizer = self.dpo.max_length, self.loaded_tokenizer
        # the reference of the preferences is the fine-tuned model
        model = tuned.merge_and_unload() if hasattr(tuned, "merge_and_unload") else tuned
        pairs = usable_pairs(tokenizer, rows, max_length=limit)
        split = max(1, round(len(pairs) * self.held_out))
        yield Measurement("usable_pairs", len(pairs))
        if len(pairs) <= split:
            return
        held = pairs[:split]
        before = text_pair_logprobs(model, tokenizer, held, max_length=limit)
        settings = replace(self.dpo, seed=seed)
        folder = context.scratch / "dpo"
        aligned = align_on_pairs(model, tokenizer, pairs[split:], settings, output_dir=folder)
        after = text_pair_logprobs(aligned.eval(), tokenizer, held, max_length=limit)
        change = [(a[0] - a[1]) - (b[0] - b[1]) for b, a in zip(before, after, strict=True)]
        yield Measurement("margin_change", _mean(change), unit="nats", samples=change)

    def _answer_losses(self, model: "PreTrainedModel", rows: Sequence[dict]) -> list[float]:
        """Mean token loss of each row's last answer; adapters that lie in the model count."""
        client = TransformersClient(model, self.loaded_tokenizer, pack_weights=False)
        asked = to_trl_sft(rows)
        prompts = [
            Prompt(tuple(Message(turn["role"], turn["content"]) for turn in row["prompt"]))
            for row in asked
        ]
        answers = [[row["completion"][0]["content"]] for row in asked]
        return [-score.mean[0] for score in client.score_continuations(prompts, answers)]


@dataclass
class DecodingStudy(LanguageModelStudy):
    """Fig. 11: quality, difficulty and spread of the queries by temperature and nucleus.

    The grid's coordinates `temperature` and `top_p` take the place of the arm's.
    """

    def measure(self, arm: MagpieConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        pipeline = MagpiePipeline(
            replace(arm, seed=cell.seed, **cell.coordinates),
            llm=self.llm,
            tokenizer=self.loaded_tokenizer,
            encoder=self.loaded_encoder,
        )
        stats = pipeline.run(context.artifacts / "data")
        yield Measurement("kept_share", stats["kept"] / stats["sampled"])
        rows = read_jsonl(context.artifacts / "data" / "final.jsonl")
        scales = {"input_quality": QUALITIES, "difficulty": DIFFICULTIES}
        for field, labels in scales.items():
            grades = [1.0 + labels.index(row[field]) for row in rows if row[field] is not None]
            if grades:
                yield Measurement(field, _mean(grades), unit="of 5", samples=grades)
        if len(rows) > 1:
            distances = [row["min_neighbor_distance"] for row in rows]
            yield Measurement("min_neighbor_distance", _mean(distances), samples=distances)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
