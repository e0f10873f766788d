"""Beam search over any step function."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

Step = Callable[
    [Int[Tensor, "rows length"], Int[Tensor, " rows"]], Float[Tensor, "rows vocabulary"]
]


class Hypothesis(NamedTuple):
    """Tokens with the final end-of-sentence, and Σ log p / length^penalty."""

    tokens: list[int]
    score: float


def beam_search(
    step: Step,
    batch: int,
    *,
    beam: int,
    max_len: int,
    eos: int,
    pad: int,
    min_len: int = 1,
    length_penalty: float = 1.0,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The best finished hypotheses of every sentence, best first.

    Each step keeps the `beam` best unfinished prefixes; a prefix that ends among the `beam` best
    candidates is finished. A sentence is done when it has `beam` finished hypotheses or its longest
    prefix has `max_len` tokens, where the end is forced.

    Args:
        step: given the tokens of all rows, (batch·beam, length) with `eos` first, and the rows of
            the previous call they continue, returns the log-probabilities of the next token.
        batch: sentences.
        beam: prefixes kept.
        max_len: tokens of a hypothesis, without the end.
        eos: end (and begin) of sentence.
        pad: a token that is never chosen.
        min_len: tokens before the end may come.
        length_penalty: exponent of the length, which counts the end.
    """
    if beam < 1 or max_len < 1:
        raise ValueError(f"beam and max_len must be at least 1, got {beam} and {max_len}")
    tokens = torch.full((batch * beam, 1), eos, dtype=torch.long, device=device)
    scores = torch.full((batch, beam), -torch.inf, device=device)
    scores[:, 0] = 0  # all prefixes are equal at first: one is enough
    origins = torch.arange(batch * beam, device=device)
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    done = torch.zeros(batch, dtype=torch.bool, device=device)
    for length in range(max_len + 1):
        log_probs = step(tokens, origins).to(scores.dtype)
        vocabulary = log_probs.shape[-1]
        log_probs[:, pad] = -torch.inf
        if length < min_len:
            log_probs[:, eos] = -torch.inf
        if length == max_len:
            end = log_probs[:, eos].clone()
            log_probs[:] = -torch.inf
            log_probs[:, eos] = end
        candidates = (scores[..., None] + log_probs.view(batch, beam, -1)).flatten(1)
        best, index = candidates.topk(min(2 * beam, candidates.shape[1]), dim=1)
        ends = (index % vocabulary == eos) & best.isfinite()
        rows = index // vocabulary + torch.arange(batch, device=device)[:, None] * beam
        _collect(finished, tokens, rows, best, ends[:, :beam] & ~done[:, None], eos, length_penalty)
        done |= torch.tensor([len(found) >= beam for found in finished], device=device)
        if length == max_len or bool(done.all()):
            break
        alive = best.masked_fill(ends, -torch.inf)
        scores, chosen = alive.topk(beam, dim=1)
        origins = rows.gather(1, chosen).flatten()
        following = (index % vocabulary).gather(1, chosen).flatten()
        tokens = torch.cat([tokens[origins], following[:, None]], dim=1)
    return [sorted(found, key=lambda h: -h.score)[:beam] for found in finished]


def _collect(
    finished: list[list[Hypothesis]],
    tokens: Tensor,
    rows: Tensor,
    scores: Tensor,
    ends: Tensor,
    eos: int,
    length_penalty: float,
) -> None:
    """Moves prefixes that end now to the finished hypotheses."""
    for sentence, place in ends.nonzero().tolist():
        prefix = tokens[rows[sentence, place], 1:].tolist()
        normalised = float(scores[sentence, place]) / (len(prefix) + 1) ** length_penalty
        finished[sentence].append(Hypothesis([*prefix, eos], normalised))
