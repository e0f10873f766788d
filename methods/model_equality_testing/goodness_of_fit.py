"""One sample against a null whose probabilities are known (app. B.2).

Legend: N pairs, K support rows over all prompts, B bootstrap draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.methods.model_equality_testing.kernels import completion_ids
from ritornello.methods.model_equality_testing.sample import PAD, CompletionSample
from ritornello.methods.model_equality_testing.two_sample import (
    TestResult,
    check_resamples,
    p_values,
)

FitKind = Literal["g_squared", "chi_squared", "truncated_chi_squared", "l1", "l2"]


@dataclass(frozen=True)
class CompletionDistribution:
    """Known probabilities of every completion of every prompt.

    Args:
        prompt_probs: pi(x), (m,), sums to 1.
        completions: per prompt the codes of its support, (K_x, L).
        probabilities: per prompt P(y|x), (K_x,), each sums to 1.
        pad: code of padding.

    Raises:
        ValueError: shapes that do not fit, or probabilities that do not sum to 1.
    """

    prompt_probs: Any
    completions: Sequence[Any]
    probabilities: Sequence[Any]
    pad: int = PAD

    def __post_init__(self) -> None:
        prior = torch.as_tensor(self.prompt_probs, dtype=torch.float64)
        codes = [torch.as_tensor(c).long() for c in self.completions]
        given = [torch.as_tensor(p, dtype=torch.float64) for p in self.probabilities]
        if not len(prior) == len(codes) == len(given):
            raise ValueError(
                "prompt_probs, completions and probabilities must have one entry a prompt, got "
                f"{len(prior)}, {len(codes)}, {len(given)}"
            )
        for name, p in [
            ("prompt_probs", prior),
            *((f"probabilities[{i}]", p) for i, p in enumerate(given)),
        ]:
            if bool((p < 0).any()) or abs(float(p.sum()) - 1) > 1e-4:
                raise ValueError(f"{name} must be >= 0 and sum to 1, got the sum {float(p.sum())}")
        for index, (rows, p) in enumerate(zip(codes, given, strict=True)):
            if rows.ndim != 2 or len(rows) != len(p):
                raise ValueError(
                    f"completions[{index}] must be (K, L) with a probability a row, got "
                    f"{tuple(rows.shape)} and {tuple(p.shape)}"
                )
        object.__setattr__(self, "prompt_probs", prior)
        object.__setattr__(self, "completions", codes)
        object.__setattr__(self, "probabilities", given)

    @property
    def joint(self) -> Float[Tensor, " K"]:
        """pi(x) P(y|x) over the support of all prompts, one prompt after the other."""
        return torch.cat(
            [w * p for w, p in zip(self.prompt_probs, self.probabilities, strict=True)]
        )

    @property
    def support(self) -> CompletionSample:
        """The rows that `joint` belongs to."""
        sizes = torch.tensor([len(p) for p in self.probabilities])
        prompts = torch.arange(len(sizes)).repeat_interleave(sizes)
        return CompletionSample(prompts, torch.cat(list(self.completions)), len(sizes), self.pad)

    def sample(self, n: int, rng: np.random.Generator) -> CompletionSample:
        """n independent pairs; a `null_sampler` of `two_sample_test`."""
        joint = self.joint.numpy()
        return self.support.take(rng.choice(len(joint), n, p=joint / joint.sum()))


def goodness_of_fit_statistic(
    counts: Float[Tensor, "*B K"], joint: Float[Tensor, " K"], kind: FitKind, support_size: int
) -> Float[Tensor, "*B"]:
    """Distance of observed counts o from n p; infinite where the impossible was observed.

    `g_squared` -2 sum o (log p - log o/n); `chi_squared` sum (o - np)^2 / np;
    `truncated_chi_squared` sum ((o - np)^2 - o) / max(p, 1/K); `l1`, `l2` of o - np.
    """
    n = counts.sum(-1, keepdim=True)
    gap = counts - n * joint
    if kind == "g_squared":
        seen = counts > 0
        ratio = torch.where(seen, joint.log() - (counts / n).log(), 0.0)
        return -2 * (counts * ratio).where(seen, torch.zeros(())).sum(-1)
    if kind == "chi_squared":
        possible = (joint > 0) | (counts > 0)
        return (gap**2 / (n * joint)).where(possible, torch.zeros(())).sum(-1)
    if kind == "truncated_chi_squared":
        return ((gap**2 - counts) / joint.clamp(min=1 / support_size)).sum(-1)
    return (gap.abs() if kind == "l1" else gap**2).sum(-1)


def goodness_of_fit_test(
    sample: CompletionSample,
    null: CompletionDistribution,
    statistic: FitKind = "g_squared",
    n_resamples: int = 1000,
    seed: int = 0,
    plus_one: bool = True,
) -> TestResult:
    """Tests H0: the sample was drawn from `null`, by a parametric bootstrap.

    Raises:
        ValueError: an unknown statistic, no resamples, or a sample of other prompts or another L.
    """
    check_resamples(n_resamples)
    if statistic not in get_args(FitKind):
        raise ValueError(f"statistic must be one of {list(get_args(FitKind))}, got {statistic!r}")
    support = null.support
    for name in ("length", "num_prompts"):
        ours, theirs = getattr(sample, name), getattr(support, name)
        if ours != theirs:
            raise ValueError(f"sample must have the null's {name}={theirs}, got {ours}")
    joint = null.joint
    observed, extended = _counts(sample, support, joint)
    drawn = np.random.default_rng(seed).multinomial(
        len(sample), (joint / joint.sum()).numpy(), size=n_resamples
    )
    value = goodness_of_fit_statistic(observed, extended, statistic, len(joint))
    simulated = goodness_of_fit_statistic(
        torch.from_numpy(drawn).double(), joint, statistic, len(joint)
    )
    p = p_values(value, simulated, slack=1e-12 * len(sample) ** 2, plus_one=plus_one)
    return TestResult(float(p), float(value), simulated, (len(sample), len(sample)))


def _counts(
    sample: CompletionSample, support: CompletionSample, joint: Tensor
) -> tuple[Tensor, Tensor]:
    """Observed counts over the support, with a place of probability 0 for each row outside it."""
    rows = torch.cat(
        [
            torch.cat([part.prompts[:, None], part.completions], dim=1).cpu()
            for part in (support, sample)
        ]
    )
    ids = completion_ids(rows[None])[0]
    known, found = ids[: len(support)], ids[len(support) :]
    if len(known.unique()) < len(known):
        raise ValueError("null lists a completion of one prompt twice")
    size = int(ids.max()) + 1
    counts = torch.bincount(found, minlength=size).double()
    probs = torch.zeros(size, dtype=torch.float64).index_put_((known,), joint)
    return counts, probs
