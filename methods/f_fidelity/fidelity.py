"""Fidelity, R-Fidelity and F-Fidelity of explanations (sec. 3 and 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.f_fidelity.curves import (
    Sampling,
    check_arguments,
    clean_values,
    masked_values,
)
from ritornello.methods.f_fidelity.removal import Inputs, RemovalSpec, count_removed


@dataclass(frozen=True)
class FidelityResult:
    """Values of every input at every size; the properties are means over inputs.

    Attributes:
        sizes: s, (sizes,).
        clean: 1_f(x), (batch,).
        morf: with the k most relevant elements removed, (batch, sizes).
        lerf: with the k least relevant removed, (batch, sizes).
        kept: with all but the k most relevant removed, (batch, sizes).
    """

    sizes: Float[Tensor, " sizes"]
    clean: Float[Tensor, " batch"]
    morf: Float[Tensor, "batch sizes"]
    lerf: Float[Tensor, "batch sizes"]
    kept: Float[Tensor, "batch sizes"]

    @property
    def plus(self) -> Float[Tensor, " sizes"]:
        """Fid⁺(s) = E[1_f(x) − 1_f(x without the explanation)]; high for a faithful one."""
        return (self.clean[:, None] - self.morf).mean(0)

    @property
    def minus(self) -> Float[Tensor, " sizes"]:
        """Fid⁻(s) = E[1_f(x) − 1_f(the explanation alone)]; low for a faithful one."""
        return (self.clean[:, None] - self.kept).mean(0)

    @property
    def delta(self) -> Float[Tensor, " sizes"]:
        """FidΔ = Fid⁺ − Fid⁻."""
        return self.plus - self.minus

    @property
    def stderr(self) -> Float[Tensor, " sizes"]:
        """Standard error of Fid⁺ over inputs; NaN for a single one."""
        return (self.clean[:, None] - self.morf).std(0) / len(self.clean) ** 0.5


def fidelity(
    model: nn.Module,
    x: Inputs,
    y: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    sizes: Sequence[float],
    *,
    removal: RemovalSpec | None = None,
    **sampling: Any,
) -> FidelityResult:
    """Plain fidelity: the whole explanation is removed from (or alone left to) the model.

    Arguments and errors as in `removal_curve`; `sampling` are its `reduce` and `batch_size`.
    """
    return _measure(model, x, y, scores, sizes, None, None, removal, Sampling(**sampling))


def r_fidelity(
    model: nn.Module,
    x: Inputs,
    y: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    sizes: Sequence[float],
    *,
    alpha: float = 0.5,
    removal: RemovalSpec | None = None,
    **sampling: Any,
) -> FidelityResult:
    """R-Fidelity: each element of the explanation (or of the rest) goes with probability α.

    Arguments and errors as in `removal_curve`; `sampling` are its `n_samples`, `reduce`,
    `generator`, `batch_size`, `paired`, `seed` and `early_stop`.
    """
    return _measure(model, x, y, scores, sizes, alpha, None, removal, Sampling(**sampling))


def f_fidelity(
    model: nn.Module,
    x: Inputs,
    y: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    sizes: Sequence[float],
    *,
    alpha: float = 0.5,
    beta: float = 0.1,
    removal: RemovalSpec | None = None,
    **sampling: Any,
) -> FidelityResult:
    """F-Fidelity: R-Fidelity under a cap of β·d expected removals, of a judge used to them.

    Args:
        model: f_r, fine-tuned under random removal of the same β (`RandomRemovalFinetune`).
        beta: no size removes more than this share on average.

    Other arguments and errors as in `r_fidelity`. Below s = β/α the curve of Fid⁺ grows by
    construction: choose β/α smaller than the smallest explanation of interest.
    """
    return _measure(model, x, y, scores, sizes, alpha, beta, removal, Sampling(**sampling))


def _measure(
    model: nn.Module,
    x: Inputs,
    y: Tensor,
    scores: Tensor,
    sizes: Sequence[float],
    alpha: float | None,
    beta: float | None,
    removal: RemovalSpec | None,
    sampling: Sampling,
) -> FidelityResult:
    removal = removal or RemovalSpec()
    check_arguments(model, x, y, scores, sizes, alpha, beta, removal)
    elements = removal.removable(x).sum(1)
    shares = torch.tensor([float(s) for s in sizes], dtype=torch.float64, device=elements.device)
    k = count_removed(shares, elements)
    # The complement of the top k is the bottom d − k, which runs down while k runs up.
    least = torch.cat([k, elements[:, None] - k], 1)
    how = (alpha, beta, removal, sampling)
    morf = masked_values(model, x, y, scores, k, "morf", *how)
    lerf, kept = masked_values(model, x, y, scores, least, "lerf", *how).chunk(2, 1)
    return FidelityResult(shares.float(), clean_values(model, x, y, sampling), morf, lerf, kept)
