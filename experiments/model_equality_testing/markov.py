"""Language models small enough to know exactly: a Markov chain for each prompt.

Legend: m prompts, V symbols, state V is the start, column V the end; L positions, pad -1.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from ritornello.methods.model_equality_testing import CompletionSample

Alternative = Literal["same", "temperature", "quantised", "watermark", "finetuned"]


@dataclass(frozen=True)
class MarkovModel:
    """m chains over V symbols.

    Attributes:
        logits: float64, (m, V + 1, V + 1): row of the current state, column of the next.
    """

    logits: Float[np.ndarray, "m states states"]

    @classmethod
    def random(cls, prompts: int, symbols: int, seed: int) -> "MarkovModel":
        """Normal logits of spread 3; the end is less likely by e^2."""
        rng = np.random.default_rng([seed, 0])
        logits = rng.normal(0, 3, (prompts, symbols + 1, symbols + 1))
        logits[..., -1] -= 2
        return cls(logits)

    def altered(self, alternative: Alternative, seed: int) -> "MarkovModel":
        """What an endpoint might serve instead.

        `temperature` 0.7; `quantised` logits of 4 levels a row; `watermark` +2.5 on a quarter of
        the columns, chosen by the previous symbol; `finetuned` normal noise of spread 0.7.
        """
        if alternative not in get_args(Alternative):
            raise ValueError(
                f"alternative must be one of {list(get_args(Alternative))}, got {alternative!r}"
            )
        rng = np.random.default_rng([seed, 1])
        logits = self.logits.copy()
        if alternative == "temperature":
            logits /= 0.7
        elif alternative == "quantised":
            step = np.abs(logits).max(-1, keepdims=True) / 1.5
            logits = np.clip(np.floor(logits / step) + 0.5, -1.5, 1.5) * step
        elif alternative == "watermark":
            states = logits.shape[-1]
            order = rng.permuted(np.tile(np.arange(states), (states, 1)), axis=1)
            logits += 2.5 * (order < states // 4)
        elif alternative == "finetuned":
            logits += rng.normal(0, 0.7, logits.shape)
        return MarkovModel(logits)

    @property
    def transitions(self) -> Float[np.ndarray, "m states states"]:
        """Probabilities of the next symbol, or the end, for each state."""
        weights = np.exp(self.logits - self.logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def sample(self, n_per_prompt: int, rng: np.random.Generator, length: int) -> CompletionSample:
        """n completions of every prompt, of at most `length` symbols."""
        prompts, states = self.logits.shape[:2]
        steps = self.transitions.cumsum(-1)
        prompt = np.repeat(np.arange(prompts), n_per_prompt)
        state = np.full(len(prompt), states - 1)
        running = np.ones(len(prompt), dtype=bool)
        codes = np.full((len(prompt), length), -1)
        for position in range(length):
            draw = rng.random(len(prompt))
            # the last sum may fall short of 1 by rounding
            upper = steps[prompt, state][:, :-1]
            state = (draw[:, None] >= upper).sum(-1)
            running &= state < states - 1
            codes[running, position] = state[running]
            state = np.where(running, state, states - 1)
        return CompletionSample(prompt, codes, prompts)

    def marginals(self, length: int) -> Float[np.ndarray, "m L states"]:
        """Distribution of the symbol at every position; the last column is padding."""
        moves = self.transitions
        states = moves.shape[-1]
        current = moves[:, -1]
        found = []
        for _ in range(length):
            found.append(current)
            symbols = np.einsum("ms,msd->md", current[:, :-1], moves[:, : states - 1])
            ended = current[:, -1:]
            current = np.concatenate([symbols[:, :-1], symbols[:, -1:] + ended], axis=1)
        return np.stack(found, axis=1)


def exact_hamming_mmd(p: MarkovModel, q: MarkovModel, length: int) -> float:
    """The MMD^2 that the Hamming estimate is unbiased for, with equally many of every prompt.

    The normalised kernel is a mean over positions, so it is the mean over prompts and positions of
    the squared distance of the marginals.
    """
    gap = p.marginals(length) - q.marginals(length)
    return float((gap**2).sum(-1).mean())


def sampler(model: MarkovModel, length: int, longest: int):
    """Draws of `estimate_power`: chains of `longest` symbols cut to `length`, so that the same
    seed gives the same chains at every length."""

    def draw(n_per_prompt: int, rng: np.random.Generator) -> CompletionSample:
        return model.sample(n_per_prompt, rng, longest).truncate(length)

    return draw
