"""A tiny GPT over the world's words: built, trained from nothing, asked like any model."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ritornello.common.chat import (
    CapabilityError,
    Completion,
    ContinuationScores,
    GenerationParams,
    PromptLike,
)
from ritornello.common.chat.protocol import OnCompletion, Usage, as_prompt, request_seed
from ritornello.common.training.preference import pad_rows
from ritornello.experiments.supercorrect.world import WORDS, Problem, StageOneData

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

CONTEXT = 64


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per word of the world."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>")


def build_model(seed: int, *, width: int, layers: int, heads: int) -> "PreTrainedModel":
    """GPT-2 with learned positions and no dropout, initialised from `seed`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=CONTEXT,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_inner=2 * width,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=WORDS.index("<eos>"),
        eos_token_id=WORDS.index("<eos>"),
        pad_token_id=WORDS.index("<pad>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


def train_stage_one(
    model: "PreTrainedModel",
    data: StageOneData,
    problems: Sequence[Problem],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> list[float]:
    """Fits the completions of fresh rows at every step, one-cycle AdamW; returns the losses."""
    tokenizer = build_tokenizer()
    rng = np.random.default_rng([seed, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    draws = data.world.sample(rng, problems, steps * batch_size)
    rows = [data.row(problem, rng) for problem in draws]
    eos = tokenizer.eos_token_id
    prompts = tokenizer([prompt for prompt, _ in rows], add_special_tokens=False)["input_ids"]
    targets = tokenizer([target for _, target in rows], add_special_tokens=False)["input_ids"]
    losses = []
    model.train()
    for step in range(steps):
        batch = range(step * batch_size, (step + 1) * batch_size)
        ids, mask = pad_rows([[*prompts[i], *targets[i], eos] for i in batch], 0)
        labels = ids.masked_fill(~mask, -100)
        for row, index in enumerate(batch):
            labels[row, : len(prompts[index])] = -100
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


class WordModelClient:
    """Asks a tiny model raw-text prompts; answers end at <eos>, which is not part of the text."""

    capabilities = frozenset({"raw_text", "seed"})

    def __init__(self, model: "PreTrainedModel", model_id: str = "tiny") -> None:
        self.model = copy.deepcopy(model).eval()
        self.model_id = model_id
        self.tokenizer = build_tokenizer()

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        asked = [as_prompt(prompt) for prompt in prompts]
        rows = [self.tokenizer(p.text, add_special_tokens=False)["input_ids"] for p in asked]
        by_length: dict[int, list[int]] = defaultdict(list)  # equal lengths need no padding
        for index, row in enumerate(rows):
            by_length[len(row)].append(index)
        answers: list[Completion | None] = [None] * len(rows)
        for length, members in by_length.items():
            budget = min(params.max_tokens, CONTEXT - length)
            noise = None
            if params.temperature > 0:
                seeds = [request_seed(asked[index], params) for index in members]
                noise = torch.stack([_gumbel(seed, budget) for seed in seeds])
            ids = torch.tensor([rows[index] for index in members])
            for index, tokens in zip(
                members, self._decode(ids, budget, params.temperature, noise), strict=True
            ):
                answers[index] = self._completion(tokens, length)
        completions = [answer for answer in answers if answer is not None]
        if on_completion is not None:
            for index, completion in enumerate(completions):
                on_completion(index, completion)
        return completions

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        raise CapabilityError(f"{self.model_id} does not score continuations")

    @torch.inference_mode()
    def _decode(
        self, ids: Tensor, budget: int, temperature: float, noise: Tensor | None
    ) -> list[list[int]]:
        eos = self.tokenizer.eos_token_id
        new = torch.full((len(ids), budget), eos)
        ended = torch.zeros(len(ids), dtype=torch.bool)
        cache, inputs = None, ids
        for step in range(budget):
            attended = torch.ones(len(ids), ids.shape[1] + step, dtype=torch.bool)
            out = self.model(input_ids=inputs, attention_mask=attended, cache=cache, use_cache=True)
            cache, logits = out.cache, out.logits[:, -1]
            if noise is not None:
                logits = logits / temperature + noise[:, step]
            token = logits.argmax(-1).masked_fill(ended, eos)
            new[:, step] = token
            ended |= token == eos
            if ended.all():
                break
            inputs = token[:, None]
        return new.tolist()

    def _completion(self, tokens: list[int], prompt_length: int) -> Completion:
        eos = self.tokenizer.eos_token_id
        stopped = eos in tokens
        kept = tokens[: tokens.index(eos)] if stopped else tokens
        return Completion(
            text=" ".join(WORDS[token] for token in kept),
            finish_reason="stop" if stopped else "length",
            token_ids=tuple(kept),
            usage=Usage(prompt_length, len(kept)),
            model=self.model_id,
        )


def _gumbel(seed: int, budget: int) -> Tensor:
    """Noise whose addition to the logits makes the argmax a draw from the softmax."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(budget, len(WORDS), generator=generator).clamp(1e-20, 1 - 1e-7)
    return -torch.log(-torch.log(uniform))
