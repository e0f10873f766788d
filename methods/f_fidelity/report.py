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
    PAIRS,
    RankAgreement,
    micro_rank,
    rank_agreement,
    spearman,
)
from ritornello.methods.f_fidelity.curves import Sampling, removal_curve
from ritornello.methods.f_fidelity.degrade import degrade
from ritornello.methods.f_fidelity.removal import Inputs, RemovalSpec

Metric = Literal["fidelity", "roar", "r_fidelity", "f_fidelity"]


@dataclass(frozen=True)
class DegradationCurves:
    """Removal curves of one explainer at rising degrees of noise.

    Attributes:
        noise: p of every level.
        sizes: s.
        morf, lerf: accuracy of every input, (levels, inputs, sizes).
        seconds: what it took.
        forwards: masked inputs judged, at most.
    """

    noise: tuple[float, ...]
    sizes: tuple[float, ...]
    morf: Float[NDArray, "levels inputs sizes"]
    lerf: Float[NDArray, "levels inputs sizes"]
    seconds: float
    forwards: int

    @property
    def quality(self) -> NDArray[np.float64]:
        """Ground truth of the ranking, 1 − p."""
        return 1 - np.asarray(self.noise, dtype=np.float64)

    def agreement(self) -> RankAgreement:
        """Correlations of the curves' means over inputs."""
        # Means that differ by rounding only are ties.
        morf, lerf = (np.round(x.mean(1), 6) for x in (self.morf, self.lerf))
        return rank_agreement(morf, lerf, self.quality)


def degradation_curves(
    judges: nn.Module | Sequence[nn.Module],
    inputs: Inputs,
    labels: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    *,
    noise: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    sizes: Sequence[float] = tuple(i / 20 for i in range(1, 21)),
    alpha: float | None = None,
    beta: float | None = None,
    removal: RemovalSpec | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> DegradationCurves:
    """MoRF and LeRF curves of an explainer and of its degraded copies.

    The same degraded copies come from the same seed, so that metrics are compared on equal terms.

    Args:
        judges: one for all levels, or one per level (ROAR).
        scores: the undegraded explanations.
        noise: p of every level.
        alpha, beta: as in `removal_curve`.
    """
    several = isinstance(judges, Sequence)
    if several and len(judges) != len(noise):
        raise ValueError(f"judges must be one per noise level ({len(noise)}), got {len(judges)}")
    started = time.perf_counter()
    curves: dict[str, list[NDArray]] = {"morf": [], "lerf": []}
    for level, p in enumerate(noise):
        degraded = degrade(scores, p, torch.Generator().manual_seed(seed * 1009 + level))
        for order in ("morf", "lerf"):
            curve = removal_curve(
                judges[level] if isinstance(judges, Sequence) else judges,
                inputs,
                labels,
                degraded,
                sizes,
                order=order,
                alpha=alpha,
                beta=beta,
                removal=removal,
                sampling=sampling,
            )
            curves[order].append(curve[:, 1:].double().cpu().numpy())
    samples = 1 if alpha is None else (sampling or Sampling()).n_samples
    return DegradationCurves(
        tuple(noise),
        tuple(sizes),
        np.stack(curves["morf"]),
        np.stack(curves["lerf"]),
        time.perf_counter() - started,
        2 * len(noise) * len(labels) * (1 + len(sizes) * samples),
    )


@dataclass
class JudgeReport:
    """Curves by explainer and metric, and what follows from them."""

    curves: dict[str, dict[str, DegradationCurves]] = field(default_factory=dict)

    def agreement(self, explainer: str, metric: str) -> RankAgreement:
        return self.curves[explainer][metric].agreement()

    def micro_rank(
        self, explainer: str, ties: Literal["min", "average"] = "min"
    ) -> dict[str, dict[str, float]]:
        """Place of every metric among the metrics: metric → pair → mean over sizes."""
        agreements = {metric: c.agreement() for metric, c in self.curves[explainer].items()}
        return micro_rank(agreements, ties=ties)

    def rows(self) -> list[dict[str, Any]]:
        """Every point: explainer, metric, noise, order, size, value, standard error."""
        return [
            {
                "explainer": explainer,
                "metric": metric,
                "noise": p,
                "order": order,
                "size": s,
                "value": float(x.mean()),
                "stderr": float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan"),
            }
            for explainer, metrics in self.curves.items()
            for metric, curves in metrics.items()
            for order in ("morf", "lerf")
            for level, p in enumerate(curves.noise)
            for j, s in enumerate(curves.sizes)
            for x in [getattr(curves, order)[level, :, j]]
        ]

    def summary(self) -> list[dict[str, Any]]:
        """Macro, micro (with the number of undefined sizes), Kendall, place and cost."""
        out = []
        for explainer, metrics in self.curves.items():
            places = self.micro_rank(explainer)
            for metric, curves in metrics.items():
                found = curves.agreement()
                row: dict[str, Any] = {"explainer": explainer, "metric": metric}
                for pair in PAIRS:
                    row[f"macro_{pair}"] = found.macro[pair]
                    row[f"micro_{pair}"] = found.micro[pair]
                    row[f"undefined_{pair}"] = found.undefined[pair]
                    row[f"kendall_{pair}"] = found.kendall[pair]
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
        if pair not in PAIRS:
            raise ValueError(f"pair must be one of {PAIRS}, got {pair!r}")
        a, b = (self.curves[explainer][name] for name in (metric, other))
        inputs = a.morf.shape[1]
        differences = _micro(a, pair, np.arange(inputs)[None]) - _micro(
            b, pair, np.arange(inputs)[None]
        )
        drawn = np.concatenate(
            [
                _micro(a, pair, rows) - _micro(b, pair, rows)
                for rows in bootstrap_indices(inputs, resamples, seed)
            ]
        )
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        return Interval(float(differences[0]), float(low), float(high))

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
    inputs: Inputs,
    labels: Int[Tensor, " batch"],
    *,
    judge: nn.Module,
    metrics: Sequence[Metric] = ("fidelity", "r_fidelity", "f_fidelity"),
    roar_judges: Callable[[str, float], nn.Module] | None = None,
    noise: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    sizes: Sequence[float] = tuple(i / 20 for i in range(1, 21)),
    alpha: float = 0.5,
    beta: float = 0.1,
    removal: RemovalSpec | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> JudgeReport:
    """Which metric ranks degraded explainers as they are known to rank.

    F-Fidelity explains and judges the fine-tuned f_r; the others explain f, and judge f (fidelity,
    R-Fidelity) or a model retrained for the explainer (ROAR).

    Args:
        model: f.
        explainers: by name, functions (model, inputs, labels) → scores.
        inputs, labels: what is explained.
        judge: f_r, from `finetune_judge`.
        metrics: of `fidelity`, `roar`, `r_fidelity`, `f_fidelity`.
        roar_judges: (explainer, noise level) → judge; needed by `roar`.
        noise, sizes, alpha, beta, removal, sampling: as in `degradation_curves`.

    Raises:
        ValueError: an unknown metric, `roar` without judges; see also `removal_curve`.
    """
    known = {"fidelity": (None, None), "roar": (None, None)}
    known |= {"r_fidelity": (alpha, None), "f_fidelity": (alpha, beta)}
    unknown = [m for m in metrics if m not in known]
    if unknown or not metrics:
        raise ValueError(f"metrics must be of {list(known)}, got {list(metrics)}")
    if "roar" in metrics and roar_judges is None:
        raise ValueError("metrics has 'roar': give roar_judges, (explainer, p) → judge")
    report = JudgeReport()
    for name, explain in explainers.items():
        explained = {"f": explain(model, inputs, labels)}
        if "f_fidelity" in metrics:
            explained["f_r"] = explain(judge, inputs, labels)
        for metric in metrics:
            judges: nn.Module | list[nn.Module] = judge if metric == "f_fidelity" else model
            if metric == "roar" and roar_judges is not None:
                judges = [roar_judges(name, p) for p in noise]
            report.curves.setdefault(name, {})[metric] = degradation_curves(
                judges,
                inputs,
                labels,
                explained["f_r" if metric == "f_fidelity" else "f"],
                noise=noise,
                sizes=sizes,
                alpha=known[metric][0],
                beta=known[metric][1],
                removal=removal,
                sampling=sampling,
                seed=seed,
            )
    return report


def _micro(curves: DegradationCurves, pair: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Micro correlation of every resample of inputs, (resamples,)."""
    count = np.zeros((len(rows), curves.morf.shape[1]))
    for r, row in enumerate(rows):
        count[r] = np.bincount(row, minlength=count.shape[1])
    count /= count.sum(1, keepdims=True)
    morf, lerf = (np.einsum("ri,eis->ers", count, x) for x in (curves.morf, curves.lerf))
    truth = np.broadcast_to(curves.quality[:, None, None], morf.shape)
    first, second = {
        "morf_vs_gt": (morf, truth),
        "lerf_vs_gt": (lerf, truth),
        "morf_vs_lerf": (morf, lerf),
    }[pair]
    by_size = spearman(np.round(first, 6), np.round(second, 6))
    defined = ~np.isnan(by_size)
    with np.errstate(invalid="ignore"):
        return np.where(defined, by_size, 0).sum(1) / defined.sum(1)
