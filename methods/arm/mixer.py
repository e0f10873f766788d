"""The Mamba mixer, scanned along one, two or four orders of the patch grid (sec. 3.1 and 3.4).

Shapes: b batch, l tokens, d inner channels, k scan directions, n states, r rank of the step size.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.common.kernels.selective_scan import causal_conv1d, selective_scan

Directions = Literal["causal", "bidirectional", "cross"]
SCANS = {
    "causal": ("row",),
    "bidirectional": ("row", "row_reverse"),
    "cross": ("row", "row_reverse", "column", "column_reverse"),
}


def scan_orders(
    directions: Directions,
    grid: tuple[int, int],
    cls_index: int | None = None,
    device: torch.device | None = None,
) -> Int[Tensor, "directions tokens"]:
    """Raster token read at each step of each direction.

    Column orders transpose the patch grid; a class token keeps its index under the transposition.
    Reversed orders flip the whole sequence, class token included.

    Args:
        directions: a key of `SCANS`.
        grid: patches per column and per row, (H, W).
        cls_index: where the class token stands among the H W + 1 tokens; None without one.
        device: where the result lies.
    """
    raster = torch.arange(grid[0] * grid[1], device=device)
    column = raster.view(grid).T.flatten()
    if cls_index is not None:
        cls = torch.tensor([cls_index], device=device)
        shifted = (order + (order >= cls_index) for order in (raster, column))
        raster, column = (
            torch.cat([order[:cls_index], cls, order[cls_index:]]) for order in shifted
        )
    orders = {
        "row": raster,
        "row_reverse": raster.flip(0),
        "column": column,
        "column_reverse": column.flip(0),
    }
    return torch.stack([orders[name] for name in SCANS[directions]])


def read_in_order(
    x: Float[Tensor, "b l d"], orders: Int[Tensor, "c k l"]
) -> Float[Tensor, "b k l d"]:
    """The tokens as each direction meets them; c is b, or 1 for the same orders everywhere."""
    (batch, length, dim), directions = x.shape, orders.shape[1]
    rows = orders + length * torch.arange(batch, device=x.device)[:, None, None]
    read = x.reshape(-1, dim).index_select(0, rows.flatten())
    return read.view(batch, directions, length, dim)


def merge_orders(
    y: Float[Tensor, "b k l d"], orders: Int[Tensor, "c k l"]
) -> Float[Tensor, "b l d"]:
    """Puts every direction's tokens back in their places and sums the directions."""
    batch, directions, length, dim = y.shape
    starts = torch.arange(batch * directions, device=y.device).view(batch, directions, 1)
    rows = orders.argsort(-1) + length * starts
    placed = y.reshape(-1, dim).index_select(0, rows.flatten())
    return placed.view(batch, directions, length, dim).sum(1)


class _Read(torch.autograd.Function):
    """`read_in_order`; its gradient is `merge_orders`: a permutation needs no scattered sums."""

    @staticmethod
    def forward(ctx, x: Tensor, orders: Tensor) -> Tensor:
        ctx.orders = orders
        return read_in_order(x, orders)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return merge_orders(grad, ctx.orders), None


class _Merge(torch.autograd.Function):
    """`merge_orders`; its gradient is `read_in_order`."""

    @staticmethod
    def forward(ctx, y: Tensor, orders: Tensor) -> Tensor:
        ctx.orders = orders
        return merge_orders(y, orders)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return read_in_order(grad, ctx.orders), None


class MambaMixer(nn.Module):
    """Mamba-1 over the scan orders: shared input and output projections, the rest per direction.

    Parameters of the directions are stacked on their first axis, so that all directions are one
    convolution and one scan.

    Args:
        d_model: width of the tokens.
        d_state: states per channel (N).
        d_conv: width of the causal convolution.
        expand: inner width over `d_model`; 1 in this paper.
        dt_rank: rank of the step size; "auto" is ceil(d_model / 16).
        directions: "causal" (row-major), "bidirectional" (and reversed) or "cross" (and both
            column-major orders).
        cls_index: index of the class token among the tokens; None without one.
        depth: number of blocks, by whose root the initial output projection is divided.

    Raises:
        ValueError: unknown `directions`.
    """

    directions: Directions

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 1,
        dt_rank: int | Literal["auto"] = "auto",
        directions: Directions = "causal",
        cls_index: int | None = None,
        *,
        depth: int = 1,
    ):
        super().__init__()
        if directions not in SCANS:
            raise ValueError(f"directions must be one of {sorted(SCANS)}, got {directions!r}")
        inner, count = d_model * expand, len(SCANS[directions])
        rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.directions, self.cls_index = directions, cls_index
        self.d_state, self.dt_rank = d_state, rank
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(count, inner, d_conv))
        self.conv_bias = nn.Parameter(torch.empty(count, inner))
        self.x_proj = nn.Parameter(torch.empty(count, rank + 2 * d_state, inner))
        self.dt_weight = nn.Parameter(torch.empty(count, inner, rank))
        self.dt_bias = nn.Parameter(torch.empty(count, inner))
        self.A_log = nn.Parameter(torch.empty(count, inner, d_state))
        self.D = nn.Parameter(torch.ones(count, inner))
        self.out_proj = nn.Linear(inner, d_model, bias=False)
        self.reset_parameters(depth)

    @torch.no_grad()
    def reset_parameters(self, depth: int) -> None:
        """The paper's initialisation: steps log-uniform in 1e-3..1e-1, A = -(1..N), D = 1."""
        bound = self.conv_weight.shape[2] ** -0.5
        nn.init.uniform_(self.conv_weight, -bound, bound)
        nn.init.uniform_(self.conv_bias, -bound, bound)
        bound = self.x_proj.shape[2] ** -0.5
        nn.init.uniform_(self.x_proj, -bound, bound)
        nn.init.uniform_(self.dt_weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        low, high = math.log(1e-3), math.log(1e-1)
        step = torch.empty_like(self.dt_bias).uniform_(low, high).exp_().clamp_(min=1e-4)
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # inverse softplus
        self.A_log.copy_(torch.arange(1, self.d_state + 1).log().expand_as(self.A_log))
        self.out_proj.weight.div_(math.sqrt(depth))

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        grid: tuple[int, int] | None = None,
        orders: Int[Tensor, "batch directions tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Mixes the tokens.

        Args:
            x: tokens in raster order, the class token (if any) at `cls_index`.
            grid: patches per column and row; not needed for "causal" and "bidirectional".
            orders: token read at each step, per image, in place of the grid's own orders (for a
                part of the tokens of a grid).

        Raises:
            ValueError: the grid does not have as many patches as there are tokens.
        """
        if len(self.A_log) == 1:
            orders = None  # the tokens' own order
        elif orders is None:
            orders = self._grid_orders(x, grid)
        h = self.in_proj(x)
        h, gate = h.chunk(2, dim=-1)
        if orders is None:
            y = self._scan(h.mT[:, None])[:, 0].mT
        else:
            orders = orders if orders.ndim == 3 else orders[None]
            y = self._scan(_Read.apply(h, orders).mT)
            y = _Merge.apply(y.mT, orders) / orders.shape[1]
        # The gate is the same token's in every direction, so it multiplies their mean once.
        return self.out_proj(y * F.silu(gate))

    def _grid_orders(self, x: Tensor, grid: tuple[int, int] | None) -> Tensor:
        patches = x.shape[1] - (self.cls_index is not None)
        if grid is None and self.directions == "bidirectional":
            grid = (1, patches)
        if grid is None or grid[0] * grid[1] != patches:
            raise ValueError(f"grid must have {patches} patches, as the tokens do, got {grid}")
        return scan_orders(self.directions, (grid[0], grid[1]), self.cls_index, x.device)

    def _scan(self, x: Float[Tensor, "b k d l"]) -> Float[Tensor, "b k d l"]:
        """Convolution and selective scan of every direction, without the gate."""
        batch, count, inner, length = x.shape
        weight, bias = self.conv_weight.flatten(0, 1), self.conv_bias.flatten()
        x = causal_conv1d(x.flatten(1, 2), weight, bias, activation="silu")
        per_direction = x.view(batch, count, inner, length)
        projected = torch.einsum("bkdl,kmd->bkml", per_direction, self.x_proj)
        sizes = [self.dt_rank, self.d_state, self.d_state]
        low_rank, B, C = projected.split(sizes, dim=2)
        delta = torch.einsum("bkrl,kdr->bkdl", low_rank, self.dt_weight)
        y = selective_scan(
            x,
            delta.flatten(1, 2),
            -torch.exp(self.A_log.flatten(0, 1)),
            B,
            C,
            self.D.flatten(),
            delta_bias=self.dt_bias.flatten(),
            delta_softplus=True,
        )
        return y.view(batch, count, inner, length)
