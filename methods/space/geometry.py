"""Angles and distances on a picture: x points right, y points down, clockwise is positive."""

import math
from collections.abc import Sequence

import numpy as np


def signed_angle(u: Sequence[float], v: Sequence[float], compat: bool = False) -> float:
    """The angle from u to v in degrees, in (-180, 180], positive clockwise on the screen.

    Args:
        u, v: (x, y), y down; neither may be zero.
        compat: antiparallel vectors give 0, as in the official code, instead of 180.

    Raises:
        ValueError: a vector is zero or not finite.
    """
    for name, vector in (("u", u), ("v", v)):
        length = math.hypot(*vector)
        if len(vector) != 2 or not math.isfinite(length) or length == 0:
            raise ValueError(f"{name} must be a finite (x, y) other than (0, 0), got {vector}")
    # as Python's numbers: products of small integer types would wrap around
    (a, b), (c, d) = map(float, u), map(float, v)
    cross, dot = a * d - b * c, a * c + b * d
    if cross == 0:
        # the official code multiplies by the sign of the cross product, which is 0 here
        return 0.0 if compat or dot > 0 else 180.0
    angle = math.degrees(math.atan2(cross, dot))
    return 180.0 if angle == -180 and not compat else angle


def circular_gap(a: float, b: float) -> float:
    """The distance of two directions in degrees, in [0, 180]."""
    gap = abs(a - b) % 360
    return min(gap, 360 - gap)


def spread_angles(rng: np.random.Generator, right: int, wanted: list[int]) -> list[int]:
    """The right angle and three others, all at least 30 degrees apart; `wanted` ones first."""
    values = [right]
    candidates = [*wanted, *(int(a) for a in rng.permutation(360))]
    for value in candidates:
        if len(values) < 4 and all(circular_gap(value, other) >= 30 for other in values):
            values.append(value)
    return values
