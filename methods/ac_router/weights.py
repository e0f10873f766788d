"""Feature weights from the spread of each feature inside each cluster (paper sec. 3).

Shapes: n tokens, d features, E experts (= clusters), k experts per token.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed

Scale = Literal["feature", "global_preclip", "global_postclip", "none"]
Dispersion = Literal["mad", "var", "pairwise"]
Degenerate = Literal["neutral", "official"]

SCALES = ("feature", "global_preclip", "global_postclip", "none")
DISPERSIONS = ("mad", "var", "pairwise")
DEGENERATES = ("neutral", "official")

# Rows per block on a CPU: |h - μ| of a block stays in cache, and partial sums round less.
_CPU_BLOCK = 1024
# There a matmul with the membership matrix adds up faster while clusters are at most so many.
_MATMUL_DEVICE, _MATMUL_CLUSTERS = "cuda", 64


class ClusterSums(NamedTuple):
    """What can be added over batches, devices and blocks.

    Attributes:
        count: tokens per cluster, (E,) fp32.
        deviation: summed dispersion of each feature, (E, d) fp32; divided by the count it is s_qk.
    """

    count: Float[Tensor, "experts"]
    deviation: Float[Tensor, "experts d"]


def check_weight_options(
    eps: float, clip: float | None, scale: str, dispersion: str, min_tokens: int, degenerate: str
) -> None:
    """Raises ValueError for options of `adaptive_weights` that it does not know."""
    if eps <= 0:
        raise ValueError(f"eps must be positive, got {eps}")
    if clip is not None and clip <= 0:
        raise ValueError(f"clip must be positive or None, got {clip}")
    if min_tokens < 1:
        raise ValueError(f"min_tokens must be at least 1, got {min_tokens}")
    for name, value, choices in (
        ("scale", scale, SCALES),
        ("dispersion", dispersion, DISPERSIONS),
        ("degenerate", degenerate, DEGENERATES),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def adaptive_weights(
    tokens: Float[Tensor, "n d"],
    assignment: Int[Tensor, "n"] | Int[Tensor, "n k"],
    num_experts: int,
    *,
    eps: float = 1e-4,
    clip: float | None = 10.0,
    scale: Scale = "feature",
    dispersion: Dispersion = "mad",
    min_tokens: int = 2,
    degenerate: Degenerate = "neutral",
    token_mask: Bool[Tensor, "n"] | None = None,
) -> Float[Tensor, "experts d"]:
    """W_qk = 1 / (s_qk + ε), clipped and scaled, from the spread s_qk of feature q in cluster k.

    Nothing is differentiated: tokens are detached and the result carries no gradient.

    Args:
        tokens: any floating dtype; statistics are taken in fp32.
        assignment: cluster of each token; of (n, k) the first column is the cluster.
        num_experts: E. Entries of `assignment` must lie in [0, E).
        eps: ε, in units of the dispersion.
        clip: largest weight as a multiple of the mean weight over clusters and features, the mean
            taken before clipping; None does not clip.
        scale: divisor of the clipped weights. `feature`: their mean over clusters, per feature;
            `global_postclip`: their mean over all; `global_preclip`: the mean before clipping.
        dispersion: `mad` mean |h - μ|, `var` mean h² - μ², `pairwise` mean |h_i - h_j| over i ≠ j.
        min_tokens: a cluster with fewer tokens has no spread to speak of.
        degenerate: `neutral` leaves such clusters out of all means and gives them weight 1;
            `official` treats their spread as 0, as the authors' code does, and leaves out only
            clusters beyond the largest expert that occurs in `assignment`.
        token_mask: True for tokens that count; the others contribute to nothing.

    Returns:
        (E, d) fp32.

    Raises:
        ValueError: for shapes, options or assignments outside what is described above.
    """
    check_weight_options(eps, clip, scale, dispersion, min_tokens, degenerate)
    _check_tokens(tokens, assignment, token_mask)
    top1 = assignment if assignment.dim() == 1 else assignment[:, 0]
    check_assignment(assignment, num_experts)
    sums = cluster_sums(tokens, top1, num_experts, dispersion=dispersion, token_mask=token_mask)
    if degenerate == "official":
        valid = occurring(assignment, num_experts, token_mask)
    else:
        valid = sums.count >= min_tokens
    return weights_from_sums(sums, valid, eps=eps, clip=clip, scale=scale)


def check_assignment(assignment: Int[Tensor, "..."], num_experts: int) -> None:
    """Raises ValueError unless all entries lie in [0, E). Reads one pair of numbers back."""
    if num_experts < 1:
        raise ValueError(f"num_experts must be at least 1, got {num_experts}")
    if assignment.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"assignment must be int64 or int32, got {assignment.dtype}")
    if assignment.numel() == 0:
        return
    low, high = (int(bound) for bound in assignment.aminmax())
    if low < 0 or high >= num_experts:
        raise ValueError(
            f"assignment must lie in [0, num_experts={num_experts}), got values {low}..{high}"
        )


def _check_tokens(tokens: Tensor, assignment: Tensor, token_mask: Tensor | None) -> None:
    if tokens.dim() != 2 or not tokens.is_floating_point():
        raise ValueError(
            f"tokens must be floating (n, d), got {tuple(tokens.shape)} {tokens.dtype}"
        )
    if assignment.dim() not in (1, 2) or len(assignment) != len(tokens):
        raise ValueError(
            f"assignment must be (n,) or (n, k) with n={len(tokens)}, got {tuple(assignment.shape)}"
        )
    if token_mask is not None and token_mask.shape != tokens.shape[:1]:
        raise ValueError(
            f"token_mask must be (n,) with n={len(tokens)}, got {tuple(token_mask.shape)}"
        )


def occurring(
    assignment: Int[Tensor, "n"] | Int[Tensor, "n k"],
    num_experts: int,
    token_mask: Bool[Tensor, "n"] | None = None,
) -> Bool[Tensor, "experts"]:
    """Clusters up to the largest expert that occurs, (E,): the official code's cluster count."""
    experts = torch.arange(num_experts, device=assignment.device)
    if token_mask is not None:
        rows = assignment.reshape(len(assignment), -1)
        assignment = rows.masked_fill(~token_mask.unsqueeze(-1), -1)
    return experts <= assignment.max() if assignment.numel() else experts < 0


@torch.no_grad()
def cluster_sums(
    tokens: Float[Tensor, "n d"],
    assignment: Int[Tensor, "n"],
    num_experts: int,
    *,
    dispersion: Dispersion = "mad",
    token_mask: Bool[Tensor, "n"] | None = None,
    sync: bool = False,
) -> ClusterSums:
    """Counts and summed dispersion of every cluster, without any host synchronisation.

    `sync` adds counts and sums over the processes of the default group, so that all of them see
    the statistics of the whole batch (with `pairwise`, of the pairs inside each process).
    """
    tokens = tokens.detach().float()
    if token_mask is not None:
        tokens = tokens.masked_fill(~token_mask.unsqueeze(-1), 0.0)  # padding may hold NaN
    members = _Membership(assignment, num_experts, token_mask)
    count = _all_reduce(members.count, sync)
    if dispersion == "pairwise":
        others = (members.count - 1).clamp(min=1).unsqueeze(-1)
        pairs = _pair_sums(tokens, assignment, members) * 2 / others
        return ClusterSums(count, _all_reduce(pairs, sync))
    divisor = count.clamp(min=1).unsqueeze(-1)
    mean = _all_reduce(_block_sums(tokens, members), sync) / divisor
    if dispersion == "var":
        # The official form: exact to ~1e-7 of the squared mean, which is why it comes with large ε.
        square = _all_reduce(_block_sums(tokens.square(), members), sync) / divisor
        return ClusterSums(count, (square - mean.square()).clamp(min=0) * divisor)
    return ClusterSums(count, _all_reduce(_block_sums(tokens, members, mean), sync))


class _Membership:
    """Sums over clusters: rows added to their cluster, on a GPU a matmul while E is small."""

    def __init__(self, assignment: Tensor, num_experts: int, token_mask: Tensor | None) -> None:
        self.assignment = assignment.long().contiguous()  # often a column of (n, k)
        self.num_experts = num_experts
        self.masked = token_mask is not None
        ones = torch.ones(len(assignment), device=assignment.device)
        self.present = ones if token_mask is None else ones * token_mask
        self.one_hot: Tensor | None = None
        if assignment.device.type == _MATMUL_DEVICE and num_experts <= _MATMUL_CLUSTERS:
            self.one_hot = ones.new_zeros(num_experts, len(ones))
            self.one_hot.scatter_(0, self.assignment.unsqueeze(0), self.present.unsqueeze(0))
        self.count = ones.new_zeros(num_experts).index_add_(0, self.assignment, self.present)

    def sums(self, rows: Float[Tensor, "m d"], begin: int = 0) -> Float[Tensor, "experts d"]:
        """Cluster sums of the rows begin..begin+m."""
        end = begin + len(rows)
        if self.one_hot is not None:
            with torch.autocast(rows.device.type, enabled=False):
                return self.one_hot[:, begin:end] @ rows
        if self.masked:
            rows = rows * self.present[begin:end].unsqueeze(-1)
        zeros = rows.new_zeros(self.num_experts, rows.shape[-1])
        return zeros.index_add_(0, self.assignment[begin:end], rows)


def _block_sums(
    tokens: Tensor, members: _Membership, mean: Tensor | None = None
) -> Float[Tensor, "experts d"]:
    """Σ h, or Σ |h - μ| around `mean`, per cluster and feature, one block of rows at a time."""
    block = _CPU_BLOCK if tokens.device.type == "cpu" else max(len(tokens), 1)
    total = tokens.new_zeros(members.num_experts, tokens.shape[-1])
    for begin in range(0, len(tokens), block):
        rows = tokens[begin : begin + block]
        if mean is not None:
            cluster = members.assignment[begin : begin + block]
            rows = mean.index_select(0, cluster).sub_(rows).abs_()
        total += members.sums(rows, begin)
    return total


def _pair_sums(
    tokens: Tensor, assignment: Tensor, members: _Membership
) -> Float[Tensor, "experts d"]:
    """Σ_{i<j in k} |h_i - h_j| in O(n log n): the r-th smallest of m values counts 2r - m + 1."""
    cluster = assignment.masked_fill(members.present == 0, members.num_experts)  # absent: last
    by_value, order = tokens.sort(dim=0)
    clusters, by_cluster = cluster[order].sort(dim=0, stable=True)
    values = by_value.gather(0, by_cluster)
    count = torch.cat([members.count, (members.present == 0).sum().view(1)])
    start = count.cumsum(0) - count
    rank = torch.arange(len(tokens), device=tokens.device).unsqueeze(-1) - start[clusters]
    # Centred values keep the alternating sum from cancelling in fp32.
    mean = _block_sums(tokens, members) / members.count.clamp(min=1).unsqueeze(-1)
    mean = torch.cat([mean, torch.zeros_like(mean[:1])]).gather(0, clusters)
    signed = (values - mean) * (2 * rank - count[clusters] + 1)
    sums = tokens.new_zeros(members.num_experts + 1, tokens.shape[-1])
    return sums.scatter_add_(0, clusters, signed)[:-1]


def _all_reduce(x: Tensor, sync: bool) -> Tensor:
    if sync and distributed.is_available() and distributed.is_initialized():
        x = x.clone()
        distributed.all_reduce(x)
    return x


@torch.no_grad()
def weights_from_sums(
    sums: ClusterSums,
    valid: Bool[Tensor, "experts"],
    *,
    eps: float = 1e-4,
    clip: float | None = 10.0,
    scale: Scale = "feature",
) -> Float[Tensor, "experts d"]:
    """The weights from cluster sums; clusters that are not `valid` get 1 and enter no mean."""
    spread = sums.deviation / sums.count.clamp(min=1e-12).unsqueeze(-1)  # averaged counts are < 1
    weights = 1 / (spread + eps)
    keep = valid.unsqueeze(-1).to(weights.dtype)
    clusters = keep.sum().clamp(min=1)
    preclip = (weights * keep).sum() / (clusters * weights.shape[1])
    if clip is not None:
        weights = weights.minimum(clip * preclip)
    if scale == "feature":
        weights = weights / ((weights * keep).sum(dim=0) / clusters).clamp(min=1e-30)
    elif scale == "global_preclip":
        weights = weights / preclip
    elif scale == "global_postclip":
        weights = weights / ((weights * keep).sum() / (clusters * weights.shape[1]))
    return torch.where(valid.unsqueeze(-1), weights, torch.ones_like(weights))


@torch.no_grad()
def token_weights(
    weights: Float[Tensor, "experts d"],
    indices: Int[Tensor, "n k"],
    mixing: Float[Tensor, "n k"] | None = None,
) -> Float[Tensor, "n d"]:
    """Each token's own weights: W of its first expert, or Σ_j p_ij W_{a_ij} with `mixing` = p."""
    if mixing is None:
        return weights.index_select(0, indices[:, 0])
    share = weights.new_zeros(len(indices), len(weights))
    share.scatter_add_(1, indices.long(), mixing.detach().to(weights.dtype))
    with torch.autocast(weights.device.type, enabled=False):  # weights stay fp32
        return share @ weights
