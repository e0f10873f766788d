"""A world in which the distribution of user queries is known: 40 queries with Zipf probabilities.

A two-layer model is trained from scratch on conversations of this world; what it writes after the
pre-query template can then be compared with the truth, exactly.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

START, END, UNKNOWN = "<|im_start|>", "<|im_end|>", "<|unk|>"
TEMPLATE = (
    f"{{% if messages[0]['role'] != 'system' %}}{START} system be helpful {END} {{% endif %}}"
    f"{{% for m in messages %}}{START} {{{{ m['role'] }}}} {{{{ m['content'] }}}} {END} "
    f"{{% endfor %}}{{% if add_generation_prompt %}}{START} assistant {{% endif %}}"
)
_VERBS = ("write", "list", "explain", "name", "find", "draw", "count", "tell", "give", "show")
_OBJECTS = ("cats", "trees", "rivers", "songs", "stars", "ships", "games", "books")
_EXTRAS = ("for me", "in short", "again please", "with care", "")
_NUMERALS = ("1", "2", "3", "4")


@dataclass(frozen=True)
class ToyWorld:
    """Queries with their probabilities, and the one reply to each."""

    queries: tuple[str, ...]
    probabilities: np.ndarray
    replies: tuple[str, ...]


def make_world(size: int = 40, *, exponent: float = 1.0, seed: int = 0) -> ToyWorld:
    """Queries of 2 to 6 words; half of them begin with a word of their own, half share verbs.

    Args:
        size: number of queries, at most 80.
        exponent: of the Zipf law over their ranks.
        seed: of the order in which ranks are given out.
    """
    if not 2 <= size <= 2 * len(_VERBS) * 4:
        raise ValueError(f"size must be in [2, {2 * len(_VERBS) * 4}], got {size}")
    rng = np.random.default_rng(seed)
    shared = [
        f"{verb} {noun} {_EXTRAS[(i + j) % len(_EXTRAS)]}".strip()
        for i, verb in enumerate(_VERBS)
        for j, noun in enumerate(_OBJECTS)
    ]
    shared = [shared[i] for i in rng.permutation(len(shared))][: size - size // 2]
    own = [f"q{i} about {_OBJECTS[i % len(_OBJECTS)]} now" for i in range(size // 2)]
    queries = [[*own, *shared][i] for i in rng.permutation(size)]
    weights = 1.0 / np.arange(1, size + 1) ** exponent
    replies = tuple(f"reply {' '.join(reversed(query.split()))}" for query in queries)
    return ToyWorld(tuple(queries), weights / weights.sum(), replies)


def toy_tokenizer(world: ToyWorld) -> "PreTrainedTokenizerFast":
    """One token a word, with the world's chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word for text in [*world.queries, *world.replies] for word in text.split()}
    words |= {"system", "user", "assistant", "be", "helpful", *_NUMERALS}
    vocabulary = {word: i for i, word in enumerate([START, END, UNKNOWN, *sorted(words)])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([START, END, UNKNOWN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=UNKNOWN, bos_token=START, eos_token=END, pad_token=END
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_toy_model(
    tokenizer: "PreTrainedTokenizerFast", *, width: int = 64, seed: int = 0
) -> "PreTrainedModel":
    """An untrained two-layer Llama over the world's words."""
    from ritornello.common.models import tiny_causal_lm

    model = tiny_causal_lm(
        vocabulary=len(tokenizer), width=width, hidden=2 * width, max_positions=128, seed=seed
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def train_toy_model(
    world: ToyWorld,
    tokenizer: "PreTrainedTokenizerFast",
    *,
    loss_on: str,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    width: int = 64,
    seed: int = 0,
) -> "PreTrainedModel":
    """Trains a two-layer Llama on conversations drawn from the world.

    Args:
        loss_on: "all" tokens, or the "assistant" turn alone, as in supervised fine-tuning.
        steps: optimiser steps (AdamW, one cycle).
        batch_size: conversations drawn per step; equal ones are computed once and count as often.
    """
    if loss_on not in ("all", "assistant"):
        raise ValueError(f"loss_on must be 'all' or 'assistant', got {loss_on!r}")
    model = build_toy_model(tokenizer, width=width, seed=seed)
    ids, labels = _conversations(world, tokenizer, loss_on)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    rng = np.random.default_rng([seed, 1])
    model.train()
    for _ in range(steps):
        drawn = rng.choice(len(world.queries), batch_size, p=world.probabilities)
        rows, times = np.unique(drawn, return_counts=True)
        loss = _mean_token_loss(model, ids[rows], labels[rows], torch.tensor(times))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def _mean_token_loss(
    model: "PreTrainedModel", ids: torch.Tensor, labels: torch.Tensor, times: torch.Tensor
) -> torch.Tensor:
    """Mean loss over the labelled tokens of rows that stand `times` (rows,) times in the batch."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    targets = labels[:, 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    weights = times[:, None] * (targets != -100)
    return (losses * weights).sum() / weights.sum()


def _conversations(
    world: ToyWorld, tokenizer: "PreTrainedTokenizerFast", loss_on: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels of every query's conversation."""
    rows = []
    for query, reply in zip(world.queries, world.replies, strict=True):
        turns = [{"role": "user", "content": query}, {"role": "assistant", "content": reply}]
        asked = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(asked, add_special_tokens=False)["input_ids"]
        whole = tokenizer.apply_chat_template(turns, tokenize=False)
        rows.append((tokenizer(whole, add_special_tokens=False)["input_ids"], len(prompt)))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for row, (tokens, answer) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        first = answer if loss_on == "assistant" else 0
        labels[row, first : len(tokens)] = torch.tensor(tokens[first:])
    return ids, labels


def few_shot_prompt(world: ToyWorld, rng: np.random.Generator) -> str:
    """A numbered list of three queries drawn from the world, to be continued (Self-Instruct)."""
    shown = rng.choice(len(world.queries), 3, replace=False, p=world.probabilities)
    tasks = " ".join(f"{k} {world.queries[i]}" for k, i in zip(_NUMERALS, shown, strict=False))
    return f"{START} system be helpful {END} {START} user {tasks} {_NUMERALS[3]}"


def query_counts(world: ToyWorld, texts: Sequence[str]) -> tuple[np.ndarray, int]:
    """How often each query was written, and how many texts are no query of the world."""
    place = {query: i for i, query in enumerate(world.queries)}
    counts = np.zeros(len(world.queries))
    for text in texts:
        if text in place:
            counts[place[text]] += 1
    return counts, len(texts) - int(counts.sum())


def total_variation(counts: np.ndarray, others: int, truth: np.ndarray) -> float:
    """Half the summed difference of shares; texts that are no query are an outcome of their own."""
    n = counts.sum() + others
    return float((np.abs(counts / n - truth).sum() + others / n) / 2)


def decoded_distribution(
    world: ToyWorld, *, temperature: float = 1.0, top_p: float = 1.0
) -> np.ndarray:
    """What exact next-word probabilities would give under a temperature and a nucleus.

    Walks the tree of queries word by word, as decoding does.
    """
    result = np.zeros(len(world.queries))

    def walk(members: list[int], depth: int, mass: float) -> None:
        branches: dict[str, list[int]] = defaultdict(list)
        for i in members:
            words = world.queries[i].split()
            branches[words[depth] if depth < len(words) else END].append(i)
        for word, probability in _next_word(world, branches, temperature, top_p).items():
            if word == END:
                result[branches[word][0]] += mass * probability
            else:
                walk(branches[word], depth + 1, mass * probability)

    walk(list(range(len(world.queries))), 0, 1.0)
    return result


def _next_word(
    world: ToyWorld, branches: Mapping[str, list[int]], temperature: float, top_p: float
) -> dict[str, float]:
    weights = {w: world.probabilities[m].sum() ** (1 / temperature) for w, m in branches.items()}
    total = sum(weights.values())
    kept, before = {}, 0.0
    for word, weight in sorted(weights.items(), key=lambda item: -item[1]):
        # a word stays while the mass before it is below top_p
        if before >= top_p:
            break
        kept[word] = weight / total
        before += kept[word]
    return {word: share / before for word, share in kept.items()}
