"""GPTQ: columns are rounded one after another, later ones make up for the error so far."""

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.methods.rrs.clipping import (
    scale_of_range,
    search_clipping,
    weight_levels,
    weight_range,
)
from ritornello.methods.rrs.config import check_bits, check_finite
from ritornello.methods.rrs.quantizers import Quantized


class Hessian:
    """H = 2/N sum X^T X over the N calibration sequences that were added, float32."""

    def __init__(self, channels: int, device: torch.device | str = "cpu") -> None:
        self.matrix = torch.zeros(channels, channels, device=device)
        self.sequences = 0

    def add(self, x: Float[Tensor, "*tokens channels"]) -> None:
        """Adds the inputs of one calibration sequence."""
        rows = x.reshape(-1, x.shape[-1]).float()
        self.matrix *= self.sequences / (self.sequences + 1)
        self.sequences += 1
        rows = rows * (2 / self.sequences) ** 0.5
        self.matrix.addmm_(rows.T, rows)


def gptq_quantize(
    weight: Float[Tensor, "out channels"],
    hessian: Float[Tensor, "channels channels"],
    bits: int = 4,
    *,
    clip_search: bool = True,
    group_size: int | None = None,
    act_order: bool = False,
    damping: float = 0.01,
    block_size: int = 128,
) -> Quantized:
    """Symmetric integers of a weight matrix that keep its outputs on the calibration inputs.

    Scales are found once on the given rows; with groups, at each group's first column on the
    columns as updated by the blocks before (sec. 3.4). Inputs that never fire get weight 0.

    Args:
        weight: the matrix of a linear layer.
        hessian: from `Hessian` over the layer's inputs; any positive multiple does.
        bits: 2 to 8.
        clip_search: see `quantize_weight`.
        group_size: input channels that share a scale, a divisor of them; None for all.
        act_order: round columns by falling diagonal of the Hessian; not together with groups.
        damping: share of the mean diagonal added to the diagonal.
        block_size: columns after which the rest of the matrix is updated; changes speed only,
            unless there are groups.

    Raises:
        ValueError: an argument is outside what is accepted.
    """
    check_bits("bits", bits)
    check_finite("weight", weight)
    check_finite("hessian", hessian)
    if damping < 0 or block_size < 1:
        raise ValueError(
            f"damping must be at least 0 and block_size at least 1, got {damping}, {block_size}"
        )
    channels = weight.shape[1]
    if hessian.shape != (channels, channels):
        raise ValueError(f"hessian must be {(channels, channels)}, got {tuple(hessian.shape)}")
    if group_size is not None and (group_size < 1 or channels % group_size or act_order):
        raise ValueError(
            f"group_size must divide the {channels} channels of weight and excludes act_order, "
            f"got group_size={group_size}, act_order={act_order}"
        )
    # Columns as rows: each step then works on contiguous memory.
    columns = weight.float().T.contiguous()
    scale = _scales(columns, bits, clip_search) if group_size is None else None
    hessian, dead = _without_dead_inputs(hessian)
    columns[dead] = 0
    permutation = torch.arange(channels, device=weight.device)
    if act_order:
        permutation = torch.argsort(hessian.diag(), descending=True)
        columns = columns[permutation]
        hessian = hessian[permutation][:, permutation]
    factor = _inverse_factor(hessian, damping)
    levels = torch.empty_like(columns)
    group_scales = []
    for start in range(0, channels, block_size):
        block = slice(start, min(start + block_size, channels))
        current = columns[block].clone()
        errors = torch.empty_like(current)
        upper = factor[block, block]
        for i in range(len(current)):
            if group_size is not None and (start + i) % group_size == 0:
                group = columns[start + i : start + i + group_size]
                group_scales.append(scale := _scales(group, bits, clip_search))
            assert scale is not None
            q = weight_levels(current[i], scale, scale, bits, symmetric=True)
            levels[start + i] = q
            errors[i] = (current[i] - q * scale) / upper[i, i]
            current[i + 1 :].addr_(upper[i, i + 1 :], errors[i], alpha=-1)
        columns[block.stop :].addmm_(factor[block, block.stop :].T, errors, alpha=-1)
    q = torch.empty_like(levels).index_copy_(0, permutation, levels).T.to(torch.int8).contiguous()
    if scale is not None and group_size is None:
        group_scales.append(scale)
    scales = torch.stack(group_scales, dim=1)
    return Quantized(q, scales, torch.zeros_like(scales))


def _scales(columns: Float[Tensor, "channels out"], bits: int, clip_search: bool) -> Tensor:
    """One symmetric scale for each output."""
    rows = columns.T.contiguous()
    low, high = weight_range(rows, symmetric=True)
    if clip_search:
        low, high = search_clipping(rows, low, high, bits, symmetric=True)
    return scale_of_range(low, high, bits, symmetric=True)[0][:, 0]


def _without_dead_inputs(hessian: Tensor) -> tuple[Tensor, Tensor]:
    """(H with 1 on the diagonal of inputs that are always 0, where those are)."""
    hessian = hessian.float().clone()
    dead = hessian.diag() == 0
    hessian.diagonal()[dead] = 1
    return hessian, dead


def _inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """Upper Cholesky factor of the damped H^-1."""
    diagonal = hessian.diagonal()
    diagonal += damping * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    return torch.linalg.cholesky(inverse, upper=True)
