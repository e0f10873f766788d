"""Partial information decomposition of a small table p(x1, x2, y) (section 2 and appendix).

I(X1, X2; Y) = R + U1 + U2 + S, with R + U_i = I(X_i; Y).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class PID:
    """Redundancy, what is unique to either modality, and synergy, in bits."""

    redundancy: float
    unique1: float
    unique2: float
    synergy: float


def _entropy(p: Float[np.ndarray, "*cells"]) -> float:
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def mutual_information(joint: Float[np.ndarray, "x y"]) -> float:
    """I(X; Y) in bits."""
    return _entropy(joint.sum(axis=1)) + _entropy(joint.sum(axis=0)) - _entropy(joint)


def decompose(
    joint: Float[np.ndarray, "x1 x2 y"], measure: Literal["broja", "i_min"] = "broja"
) -> PID:
    """Decomposes a joint distribution.

    Args:
        joint: probabilities, summing to 1.
        measure: `broja` (Bertschinger et al.: unique information is what remains under the joint
            distribution of the same margins that shares least), or `i_min` (Williams and Beer).

    Raises:
        ValueError: not a distribution over three variables, or an unknown measure.
    """
    joint = np.asarray(joint, dtype=float)
    if joint.ndim != 3 or (joint < 0).any() or abs(joint.sum() - 1) > 1e-6:
        raise ValueError(
            "joint must hold probabilities (x1, x2, y) that sum to 1, "
            f"got shape {joint.shape} and sum {joint.sum():g}"
        )
    first, second = joint.sum(axis=1), joint.sum(axis=0)
    total = mutual_information(joint.reshape(-1, joint.shape[2]))
    of_first, of_second = mutual_information(first), mutual_information(second)
    if measure == "broja":
        least = mutual_information(_least_synergy(joint).reshape(-1, joint.shape[2]))
        redundancy = of_first + of_second - least
    elif measure == "i_min":
        redundancy = float(np.minimum(_specific(first), _specific(second)) @ joint.sum(axis=(0, 1)))
    else:
        raise ValueError(f"measure must be 'broja' or 'i_min', got {measure!r}")
    synergy = total - of_first - of_second + redundancy
    return PID(redundancy, of_first - redundancy, of_second - redundancy, synergy)


def _specific(joint: Float[np.ndarray, "x y"]) -> Float[np.ndarray, " y"]:
    """I(X; Y = y) = Σ_x p(x | y) log p(y | x) / p(y), for each y."""
    p_x, p_y = joint.sum(axis=1, keepdims=True), joint.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = joint / p_y * np.log2(joint / (p_x * p_y))
    return np.nan_to_num(terms).sum(axis=0)


def _least_synergy(
    joint: Float[np.ndarray, "x1 x2 y"], rounds: int = 500, tolerance: float = 1e-10
) -> Float[np.ndarray, "x1 x2 y"]:
    """The distribution with the same p(x1, y) and p(x2, y) that minimises I(X1, X2; Y).

    I = Σ_y p(y) KL(q_y ‖ r) at r = Σ_y p(y) q_y, and both sets are convex: projecting q_y on the
    margins and r on the mixtures in turn reaches the minimum (Csiszár and Tusnády).
    """
    p_y = joint.sum(axis=(0, 1))
    ys = np.flatnonzero(p_y)
    rows = [joint[:, :, y].sum(axis=1) / p_y[y] for y in ys]
    columns = [joint[:, :, y].sum(axis=0) / p_y[y] for y in ys]
    given = [np.outer(a, b) for a, b in zip(rows, columns, strict=True)]
    before = np.inf
    for _ in range(rounds):
        mixture = np.tensordot(p_y[ys], np.stack(given), axes=1)
        given = [_on_margins(mixture, a, b) for a, b in zip(rows, columns, strict=True)]
        table = np.zeros_like(joint)
        for y, q in zip(ys, given, strict=True):
            table[:, :, y] = p_y[y] * q
        now = mutual_information(table.reshape(-1, joint.shape[2]))
        if abs(before - now) < tolerance:
            break
        before = now
    return table


def _on_margins(
    start: np.ndarray, rows: np.ndarray, columns: np.ndarray, rounds: int = 200
) -> np.ndarray:
    """Iterative proportional fitting: the closest table to `start` with these margins."""
    table = start.copy()
    for _ in range(rounds):
        table *= _ratio(rows, table.sum(axis=1))[:, None]
        sums = table.sum(axis=0)
        table *= _ratio(columns, sums)[None, :]
        if np.abs(sums - columns).max() < 1e-12:
            break
    return table


def _ratio(wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    return np.divide(wanted, found, out=np.zeros_like(wanted), where=found > 0)
