"""One call that judges metrics by how they rank explainers of known quality (sec. 5)."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from ritornello.common.statistics import Interval, bootstrap_indices
from ritornello.methods.f_fidelity.agreement import (
    BEST_SIGN,
    PAIRS,
    mean_of_defined,
    rank_agreement,
    spearman,
)
from ritornello.methods.f_fidelity.curves import Sampling, removal_curve
from ritornello.methods.f_fidelity.degrade import degrade
from ritornello.methods.f_fidelity.removal import Inputs, RemovalSpec

Metric = Literal["fidelity", "roar", "r_fidelity", "f_fidelity"]
NOISE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class DegradationCurves:
    """Removal curves of one explainer at rising degrees of noise.

    Attributes:
        noise: p of every level.
        sizes: s.
        morf, lerf: accuracy of every input, (levels, inputs, sizes).
        seed: of degradation and masks.
        seconds: what it took.
        forwards: masked inputs judged, at most.
    """

    noise: tuple[float, ...]
    sizes: tuple[float, ...]
    morf: Float[NDArray, "levels inputs sizes"]
    lerf: Float[NDArray, "levels inputs sizes"]
    seed: int
    seconds: float
    forwards: int

    @property
    def quality(self) -> Float[NDArray, " levels"]:
        """Ground truth of the ranking, 1 − p."""
        return 1 - np.asarray(self.noise, dtype=np.float64)

    def sides(
        self, pair: str, weights: Float[NDArray, "resamples inputs"] | None = None
    ) -> tuple[NDArray, NDArray]:
        """What a pair correlates: curves as means over inputs, or the quality, (levels, sizes).

        Args:
            pair: `morf_vs_gt`, `lerf_vs_gt` or `morf_vs_lerf`.
            weights: of the inputs, one row a resample; then both are (resamples, levels, sizes).
        """
        if pair not in PAIRS:
            raise ValueError(f"pair must be one of {PAIRS}, got {pair!r}")

        def mean(x: NDArray) -> NDArray:
            # Means that differ by rounding only are ties.
            by_input = x.mean(1) if weights is None else np.einsum("ri,eis->res", weights, x)
            return np.round(by_input, 6)

        first = mean(self.lerf if pair == "lerf_vs_gt" else self.morf)
        if pair == "morf_vs_lerf":
            return first, mean(self.lerf)
        return first, np.broadcast_to(self.quality[:, None], first.shape)

    def by_size(self, pair: str) -> Float[NDArray, " sizes"]:
        """Spearman's correlation at every size; NaN where all levels have the same value."""
        return spearman(*self.sides(pair))


def degradation_curves(
    judges: nn.Module | Sequence[nn.Module],
    x: Inputs,
    y: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    *,
    noise: Sequence[float] = NOISE,
    sizes: Sequence[float] = tuple(i / 20 for i in range(1, 21)),
    alpha: float | None = None,
    beta: float | None = None,
    removal: RemovalSpec | None = None,
    seed: int = 0,
    **sampling: Any,
) -> DegradationCurves:
    """MoRF and LeRF curves of an explainer and of its degraded copies.

    The same degraded copies and masks come from the same seed, so that metrics are compared on
    equal terms.

    Args:
        judges: one for all levels, or one per level (ROAR).
        scores: the undegraded explanations.
        noise: p of every level.
        seed: of degradation and masks.

    Other arguments and errors as in `removal_curve`; `sampling` are those about masks.
    """
    several = isinstance(judges, Sequence)
    if several and len(judges) != len(noise):
        raise ValueError(f"judges must be one per noise level ({len(noise)}), got {len(judges)}")
    started = time.perf_counter()
    how = {"alpha": alpha, "beta": beta, "removal": removal, "seed": seed, **sampling}
    curves: dict[str, list[NDArray]] = {"morf": [], "lerf": []}
    for level, p in enumerate(noise):
        degraded = degrade(scores, p, torch.Generator().manual_seed(seed * 1009 + level))
        judge = judges[level] if isinstance(judges, Sequence) else judges
        for order in ("morf", "lerf"):
            curve = removal_curve(judge, x, y, degraded, sizes, order=order, **how)
            curves[order].append(curve[:, 1:].double().cpu().numpy())
    samples = 1 if alpha is None else Sampling(**sampling).n_samples
    return DegradationCurves(
        tuple(noise),
        tuple(sizes),
        np.stack(curves["morf"]),
        np.stack(curves["lerf"]),
        seed,
        time.perf_counter() - started,
        2 * len(noise) * len(y) * (1 + len(sizes) * samples),
    )


@dataclass
class JudgeReport:
    """Curves by explainer and metric, and what follows from them."""

    curves: dict[str, dict[str, DegradationCurves]] = field(default_factory=dict)

    def micro_rank(
        self, explainer: str, ties: Literal["min", "average"] = "min"
    ) -> dict[str, dict[str, float]]:
        """Place of every metric among the metrics: metric → pair → mean over sizes."""
        metrics = self.curves[explainer]
        places: dict[str, dict[str, float]] = {metric: {} for metric in metrics}
        for pair in PAIRS:
            sides = zip(*(curves.sides(pair) for curves in metrics.values()), strict=True)
            a, b = (np.stack(side) for side in sides)
            found = rank_agreement(a, b, best=BEST_SIGN[pair], ties=ties).micro_rank
            for metric, place in zip(metrics, np.asarray(found), strict=True):
                places[metric][pair] = float(place)
        return places

    def rows(self) -> list[dict[str, Any]]:
        """Every point: explainer, metric, noise, seed, order, size, value, its standard error."""
        return [
            {
                "explainer": explainer,
                "metric": metric,
                "noise": p,
                "seed": curves.seed,
                "order": order,
                "size": s,
                "value": float(x.mean()),
                "se": float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan"),
            }
            for explainer, metrics in self.curves.items()
            for metric, curves in metrics.items()
            for order in ("morf", "lerf")
            for level, p in enumerate(curves.noise)
            for j, s in enumerate(curves.sizes)
            for x in [getattr(curves, order)[level, :, j]]
        ]

    def summary(self) -> list[dict[str, Any]]:
        """Macro, micro (with the number of undefined sizes), Kendall's τ-b, place and cost."""
        from scipy import stats

        out = []
        for explainer, metrics in self.curves.items():
            places = self.micro_rank(explainer)
            for metric, curves in metrics.items():
                row: dict[str, Any] = {"explainer": explainer, "metric": metric}
                for pair in PAIRS:
                    a, b = curves.sides(pair)
                    found = rank_agreement(a, b)
                    row[f"macro_{pair}"] = found.macro
                    row[f"micro_{pair}"] = found.micro
                    row[f"undefined_{pair}"] = int(np.isnan(curves.by_size(pair)).sum())
                    row[f"kendall_{pair}"] = float(
                        np.asarray(stats.kendalltau(a.mean(1), b.mean(1)))[0]
                    )
                    row[f"place_{pair}"] = places[metric][pair]
                out.append(row | {"seconds": curves.seconds, "forwards": curves.forwards})
        return out

    def compare(
        self,
        explainer: str,
        metric: str,
        other: str,
        *,
        pair: str = "morf_vs_gt",
        resamples: int = 1000,
        seed: int = 0,
    ) -> Interval:
        """Micro correlation of one metric minus another's, bootstrapped over inputs, paired.

        Resamples in which a correlation is undefined at every size are left out.
        """
        a, b = (self.curves[explainer][name] for name in (metric, other))
        inputs = a.morf.shape[1]
        drawn = [
            np.bincount(row, minlength=inputs) / inputs
            for rows in bootstrap_indices(inputs, resamples, seed)
            for row in rows
        ]
        weights = np.stack([np.full(inputs, 1 / inputs), *drawn])
        difference = _micro(a, pair, weights) - _micro(b, pair, weights)
        low, high = np.nanquantile(difference[1:], [0.025, 0.975])
        return Interval(float(difference[0]), float(low), float(high))

    def figure(self, explainer: str, order: Literal["morf", "lerf"] = "morf") -> Any:
        """A fan of curves for every metric: the better the explainer, the darker its line.

        Returns:
            A matplotlib figure that belongs to no global state.
        """
        from ritornello.common.reporting import new_figure

        metrics = self.curves[explainer]
        figure, panels = new_figure(
            columns=len(metrics), width=3.2, height=3.0, sharey=True, squeeze=False
        )
        for axes, (metric, curves) in zip(panels[0], metrics.items(), strict=True):
            draw_fan(axes, curves, order)
            axes.set(title=metric, xlabel="share removed")
        panels[0][0].set_ylabel(f"accuracy, {order}")
        panels[0][-1].legend(title="noise", fontsize=7)
        return figure


def draw_fan(axes: Any, curves: DegradationCurves, order: Literal["morf", "lerf"]) -> None:
    """One line per noise level."""
    for level, p in enumerate(curves.noise):
        mean = getattr(curves, order)[level].mean(0)
        axes.plot(curves.sizes, mean, color=(0.0, 0.25, 0.45), alpha=1 - 0.8 * p, label=f"{p:g}")
    axes.set_ylim(-0.03, 1.03)


def judge_report(
    model: nn.Module,
    explainers: Mapping[str, Callable[[nn.Module, Any, Tensor], Tensor]],
    data: tuple[Inputs, Int[Tensor, " batch"]],
    *,
    judge: nn.Module | None = None,
    metrics: Sequence[Metric] | None = None,
    roar_judges: Callable[[str, float], nn.Module] | None = None,
    alpha: float = 0.5,
    beta: float = 0.1,
    **how: Any,
) -> JudgeReport:
    """Which metric ranks degraded explainers as they are known to rank.

    F-Fidelity explains and judges the fine-tuned f_r; the others explain f, and judge f (fidelity,
    R-Fidelity) or a model retrained for the explainer (ROAR).

    Args:
        model: f.
        explainers: by name, functions (model, x, y) → scores.
        data: the inputs that are explained, and their labels.
        judge: f_r, from `RandomRemovalFinetune`; needed by `f_fidelity`.
        metrics: of `fidelity`, `roar`, `r_fidelity`, `f_fidelity`; all that have their judges when
            None.
        roar_judges: (explainer, noise level) → judge; needed by `roar`.
        how: as in `degradation_curves`: noise, sizes, removal, seed, and those about masks.

    Raises:
        ValueError: an unknown metric, one without its judges; see also `removal_curve`.
    """
    known = {"fidelity": (None, None), "r_fidelity": (alpha, None)}
    if roar_judges is not None:
        known["roar"] = (None, None)
    if judge is not None:
        known["f_fidelity"] = (alpha, beta)
    chosen = list(known) if metrics is None else list(metrics)
    unknown = [m for m in chosen if m not in known]
    if unknown or not chosen:
        raise ValueError(
            f"metrics must be of {list(known)}, got {chosen}; "
            "roar needs roar_judges and f_fidelity needs judge"
        )
    report, (x, y) = JudgeReport(), data
    for name, explain in explainers.items():
        scores = explain(model, x, y)
        for metric in chosen:
            judges, judged = model, scores
            if metric == "f_fidelity" and judge is not None:
                judges, judged = judge, explain(judge, x, y)
            elif metric == "roar" and roar_judges is not None:
                levels = how.get("noise", NOISE)
                judges = [roar_judges(name, p) for p in levels]
            a, b = known[metric]
            report.curves.setdefault(name, {})[metric] = degradation_curves(
                judges, x, y, judged, alpha=a, beta=b, **how
            )
    return report


def _micro(
    curves: DegradationCurves, pair: str, weights: Float[NDArray, "resamples inputs"]
) -> Float[NDArray, " resamples"]:
    """Micro correlation of every resample of inputs."""
    x, y = (np.moveaxis(side, 1, 0) for side in curves.sides(pair, weights))
    return mean_of_defined(spearman(x, y))
