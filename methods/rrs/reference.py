"""The layer of sec. 3.1 as loops over tokens, channels and outputs: the oracle of the tests."""

import torch
from jaxtyping import Float, Int8
from torch import Tensor


def runtime_smooth_linear(
    x: Float[Tensor, "tokens channels"],
    weight: Int8[Tensor, "out channels"],
    weight_scale: Float[Tensor, " out"],
    group_size: int = 128,
    bits: int = 4,
) -> Float[Tensor, "tokens out"]:
    """Y[t,o] = a[t] w[o] sum_c s[c] q[t,c] W[o,c] for one sequence."""
    tokens, channels = x.shape
    levels = 2 ** (bits - 1) - 1
    # s[c]: largest magnitude of the channel over the tokens; sorted; the group's largest wins.
    largest = [max(abs(x[t, c].item()) for t in range(tokens)) for c in range(channels)]
    largest = [max(value, 1e-5) for value in largest]
    order = sorted(range(channels), key=lambda c: -largest[c])
    scale = [0.0] * channels
    for start in range(0, channels, group_size):
        group = order[start : start + group_size]
        for c in group:
            scale[c] = max(largest[k] for k in group)
    y = torch.zeros(tokens, len(weight), dtype=torch.float64)
    for t in range(tokens):
        smoothed = [x[t, c].item() / scale[c] for c in range(channels)]
        # a[t]: the largest smoothed magnitude becomes the highest level; 1 for a zero token.
        step = max(abs(value) for value in smoothed) / levels or 1.0
        # Python's round also takes ties to the even level.
        q = [min(max(round(value / step), -levels - 1), levels) for value in smoothed]
        for o in range(len(weight)):
            total = sum(scale[c] * q[c] * weight[o, c].item() for c in range(channels))
            y[t, o] = step * weight_scale[o].item() * total
    return y.float()
