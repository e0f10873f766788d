"""Linear evaluation: logistic regression or ridge on frozen features (section 4, appendix)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Metric = Literal["balanced_accuracy", "accuracy", "f1_macro", "f1_weighted"]
COARSE_COSTS = tuple(10.0**power for power in range(-6, 7, 2))


@dataclass(frozen=True)
class ProbeResult:
    """The score of a probe.

    Attributes:
        value: in percent; for a regression the mean squared error.
        cost: the inverse penalty C that the held-out share chose.
        predictions: classes of the test set, 0/1 for several labels, or values.
    """

    value: float
    cost: float
    predictions: Tensor


class LogisticRegression:
    """Multinomial logistic regression by L-BFGS, all rows at once.

    Args:
        cost: C, the inverse of the penalty.
        penalty: `l2` is scikit-learn's objective, Σ CE + ‖W‖² / 2C; `l2_norm` is the official
            solver's, mean CE + ‖W‖ / 2C, with the norm not squared.
        max_iter: iterations of L-BFGS.
    """

    def __init__(
        self,
        cost: float = 1.0,
        *,
        penalty: Literal["l2", "l2_norm"] = "l2",
        max_iter: int = 100,
    ) -> None:
        if penalty not in ("l2", "l2_norm"):
            raise ValueError(f"penalty must be 'l2' or 'l2_norm', got {penalty!r}")
        if not cost > 0:
            raise ValueError(f"cost must be positive, got {cost}")
        self.cost, self.penalty, self.max_iter = cost, penalty, max_iter
        self.weight = self.bias = torch.empty(0)

    def fit(
        self,
        x: Float[Tensor, "n dim"],
        y: Int[Tensor, "n"] | Float[Tensor, "n labels"],
        start: "LogisticRegression | None" = None,
    ) -> "LogisticRegression":
        """Fits classes 0 … K − 1, or independent 0/1 labels when `y` has columns.

        Args:
            start: a fitted regression to start from.
        """
        outputs = y.shape[1] if y.ndim == 2 else int(y.max()) + 1
        weight, bias = x.new_zeros(x.shape[1], outputs), x.new_zeros(outputs)
        if start is not None:
            weight, bias = start.weight.clone(), start.bias.clone()
        weight.requires_grad_()
        bias.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [weight, bias], max_iter=self.max_iter, tolerance_grad=1e-5, tolerance_change=1e-7,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self._objective(x @ weight + bias, y, weight)
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)  # type: ignore[arg-type]
        self.weight, self.bias = weight.detach(), bias.detach()
        return self

    def _objective(self, logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        if y.ndim == 2:
            loss = F.binary_cross_entropy_with_logits(logits, y.float(), reduction="none")
            loss = loss.sum(dim=1).mean()
        else:
            loss = F.cross_entropy(logits, y)
        if self.penalty == "l2":
            return loss + weight.square().sum() / (2 * self.cost * len(y))
        # the root's slope at zero is infinite: official weights start away from it
        return loss + (weight.square().sum() + 1e-12).sqrt() / (2 * self.cost)

    def logits(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n outputs"]:
        """Linear scores."""
        return x @ self.weight + self.bias


def score(predicted: Tensor, target: Tensor, metric: Metric) -> float:
    """A metric in percent.

    `balanced_accuracy` is the mean recall of the classes; F1 takes classes or 0/1 columns.

    Raises:
        ValueError: an unknown metric.
    """
    if metric == "accuracy":
        return 100 * float((predicted == target).float().mean())
    if metric == "balanced_accuracy":
        classes = target.unique()
        recalls = [float((predicted[target == c] == c).float().mean()) for c in classes]
        return 100 * sum(recalls) / len(recalls)
    if metric not in ("f1_macro", "f1_weighted"):
        raise ValueError(
            f"metric must be balanced_accuracy, accuracy, f1_macro or f1_weighted, got {metric!r}"
        )
    if target.ndim == 1:
        classes = torch.cat([predicted, target]).unique()
        predicted, target = predicted[:, None] == classes, target[:, None] == classes
    predicted, target = predicted.bool(), target.bool()
    both = (predicted & target).sum(dim=0).float()
    scores = 2 * both / (predicted.sum(dim=0) + target.sum(dim=0)).clamp(min=1)
    if metric == "f1_macro":
        return 100 * float(scores.mean())
    weights = target.sum(dim=0).float()
    return 100 * float((scores * weights).sum() / weights.sum())


def split_for_selection(
    labels: Tensor, holdout: float = 0.4, seed: int = 48
) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to choose the cost on, with the classes' shares kept.

    Raises:
        ValueError: a share outside (0, 1).
    """
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must be in (0, 1), got {holdout}")
    generator = torch.Generator().manual_seed(seed)
    groups = [torch.arange(len(labels))]
    if labels.ndim == 1 and not labels.is_floating_point():
        groups = [torch.nonzero(labels.cpu() == c).flatten() for c in labels.cpu().unique()]
    kept, held = [], []
    for rows in groups:
        rows = rows[torch.randperm(len(rows), generator=generator)]
        cut = round(len(rows) * holdout)
        held.append(rows[:cut])
        kept.append(rows[cut:])
    return torch.cat(kept), torch.cat(held)


def _search(accuracy: Callable[[float], float], coarse: Sequence[float], refine: bool) -> float:
    """The best cost of a coarse sweep, then of a binary search among 29 around it."""
    seen = {cost: accuracy(cost) for cost in coarse}
    best = max(seen, key=lambda cost: seen[cost])
    if not refine:
        return best
    middle = math.log10(best)
    costs = [c for c in np.logspace(middle - 2, middle + 2, 29) if 1e-6 <= c <= 1e6]
    while len(costs) > 1:
        quarter, half = len(costs) // 4, len(costs) // 2
        probes = [costs[quarter], costs[half], costs[-quarter or -1]]
        for cost in probes:
            if cost not in seen:
                seen[cost] = accuracy(cost)
        values = [seen[cost] for cost in probes]
        if values[0] == max(values):
            costs = costs[:half]
        elif values[2] == max(values):
            costs = costs[half:]
        else:
            costs = costs[quarter:-quarter] if quarter else costs[half : half + 1]
    return max(seen, key=lambda cost: seen[cost])


def linear_probe(
    train: tuple[Float[Tensor, "n dim"], Tensor],
    test: tuple[Float[Tensor, "m dim"], Tensor],
    metric: Metric = "balanced_accuracy",
    penalty: Literal["l2", "l2_norm"] = "l2",
    *,
    costs: Sequence[float] = COARSE_COSTS,
    refine: bool = True,
    standardize: bool = False,
    holdout: float = 0.4,
    seed: int = 48,
    max_iter: int = 100,
) -> ProbeResult:
    """Fits a logistic regression on frozen features and scores it on a test set.

    The cost is chosen by `metric` on a held-out 40 % of the training set, by a coarse sweep and a
    binary refinement; then all of it is fitted.

    Args:
        train, test: features with classes 0 … K − 1, or with columns of 0/1 labels.
        costs: of the coarse sweep; a single one is used as it is.
        refine: whether to search around the best of them.
        standardize: scales features by the training set's mean and deviation.

    Raises:
        ValueError: features and labels that do not fit each other, values that are not finite.
    """
    x, y = _checked("train", train)
    x_test, y_test = _checked("test", test)
    y, y_test = y.long(), y_test.long()  # labels may be bools or small integers
    if standardize:
        mean, deviation = x.mean(dim=0), x.std(dim=0).clamp(min=1e-8)
        x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    cost = costs[0]
    if len(costs) > 1:
        kept, held = split_for_selection(y, holdout, seed)

        def accuracy(cost: float) -> float:
            fitted = LogisticRegression(cost, penalty=penalty, max_iter=max_iter)
            fitted.fit(x[kept], y[kept])
            return score(_predict(fitted, x[held], y.ndim), y[held], metric)

        cost = _search(accuracy, costs, refine)
    fitted = LogisticRegression(cost, penalty=penalty, max_iter=max_iter).fit(x, y)
    predicted = _predict(fitted, x_test, y.ndim)
    return ProbeResult(score(predicted, y_test, metric), float(cost), predicted)


def _predict(fitted: LogisticRegression, x: Tensor, label_dims: int) -> Tensor:
    logits = fitted.logits(x)
    return (logits > 0).long() if label_dims == 2 else logits.argmax(dim=1)


def ridge_probe(
    train: tuple[Float[Tensor, "n dim"], Float[Tensor, "n *targets"]],
    test: tuple[Float[Tensor, "m dim"], Float[Tensor, "m *targets"]],
    *,
    penalties: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
    holdout: float = 0.4,
    seed: int = 48,
) -> ProbeResult:
    """Ridge regression, its penalty chosen on a held-out 40 %; scored by the mean squared error."""
    x, y = _checked("train", train)
    x_test, y_test = _checked("test", test)
    kept, held = split_for_selection(y.float(), holdout, seed)

    def solve(x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, target = x.mean(dim=0), y.mean(dim=0)
        centred = x - mean
        gram = centred.T @ centred + penalty * torch.eye(x.shape[1], device=x.device)
        return torch.linalg.solve(gram, centred.T @ (y - target)), mean, target

    def predict(x: Tensor, solved: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        weight, mean, target = solved
        return (x - mean) @ weight + target

    def error(penalty: float) -> float:
        guess = predict(x[held], solve(x[kept], y[kept], penalty))
        return float((guess - y[held]).square().mean())

    best = min(penalties, key=error)
    predicted = predict(x_test, solve(x, y, best))
    return ProbeResult(float((predicted - y_test).square().mean()), 1 / best, predicted)


def _checked(name: str, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    features, labels = pair
    if features.ndim != 2 or len(features) != len(labels) or len(features) < 2:
        raise ValueError(
            f"{name} must be features (samples, dim) with as many labels, "
            f"got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    if not bool(features.isfinite().all()):
        raise ValueError(f"{name} features must be finite, got NaN or infinity")
    return features.float(), labels
