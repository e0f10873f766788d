"""Does the gate find the clusters? Mixtures whose clusters are tight on few features (sec. 3).

Shapes: n points, d features, K clusters.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn import functional

from ritornello.methods.ac_router.weights import adaptive_weights

Rule = Literal["nearest", "dot", "ac", "own_metric"]
RULES = ("nearest", "dot", "ac", "own_metric")


class Mixture(NamedTuple):
    """Points of clusters that are each tight on features of their own.

    Attributes:
        points: (n, d).
        labels: true cluster of each point, (n,).
        centroids: true centres, (K, d).
        tight: which features are tight in which cluster, (K, d).
    """

    points: Float[Tensor, "n d"]
    labels: Int[Tensor, "n"]
    centroids: Float[Tensor, "K d"]
    tight: Bool[Tensor, "K d"]


def feature_mixture(
    *,
    points: int,
    clusters: int,
    features: int,
    tight_features: int,
    tight_spread: float,
    loose_spread: float,
    generator: Generator,
) -> Mixture:
    """Draws a Gaussian mixture with centres N(0, 1).

    Args:
        points: n.
        clusters: K.
        features: d.
        tight_features: how many random features of each cluster are tight.
        tight_spread: their standard deviation around the centre.
        loose_spread: that of all other features.
        generator: the only source of randomness.
    """
    if not 1 <= tight_features <= features:
        raise ValueError(
            f"tight_features must be in [1, features={features}], got {tight_features}"
        )
    centroids = torch.randn(clusters, features, generator=generator)
    ranks = torch.rand(clusters, features, generator=generator).argsort(dim=1)
    tight = ranks < tight_features
    spread = torch.where(tight, tight_spread, loose_spread)
    labels = torch.randint(clusters, (points,), generator=generator)
    noise = torch.randn(points, features, generator=generator)
    return Mixture(centroids[labels] + spread[labels] * noise, labels, centroids, tight)


def assign(
    points: Float[Tensor, "n d"],
    centroids: Float[Tensor, "K d"],
    rule: Rule,
    weights: Float[Tensor, "K d"],
    previous: Int[Tensor, "n"],
) -> Int[Tensor, "n"]:
    """Assigns each point to a cluster.

    Args:
        points: (n, d).
        centroids: cluster centres; at unit norm they play the experts of a gate.
        rule: `nearest` centre in the Euclidean metric; `dot` the gate with unit weights; `ac` the
            gate of the paper, the point scaled by its previous cluster's weights; `own_metric`
            the nearest centre in each candidate's own metric Σ_q W_kq |x_q - c_kq|.
        weights: W, (K, d).
        previous: previous cluster of each point, which only `ac` uses.
    """
    if rule == "nearest":
        return torch.cdist(points, centroids).argmin(dim=1)
    if rule == "own_metric":
        # one cluster at a time keeps the memory at n·d
        distances = [((points - c).abs() @ w) for c, w in zip(centroids, weights, strict=True)]
        return torch.stack(distances, dim=1).argmin(dim=1)
    experts = functional.normalize(centroids, dim=1)
    if rule == "dot":
        return (points @ experts.t()).argmax(dim=1)
    if rule == "ac":
        return ((points * weights[previous]) @ experts.t()).argmax(dim=1)
    raise ValueError(f"rule must be one of {RULES}, got {rule!r}")


def identify(
    points: Float[Tensor, "n d"],
    centroids: Float[Tensor, "K d"],
    rule: Rule,
    *,
    refine: Rule = "own_metric",
    steps: int = 3,
) -> list[Int[Tensor, "n"]]:
    """Assignments by `rule` after each re-estimation of the weights.

    Starts from the nearest centres. At every step the weights come from the labels so far, `rule`
    assigns with them, and the labels are refined by `refine`: the earlier layers of a network.

    Returns:
        The assignments after step 1..`steps`.
    """
    labels = torch.cdist(points, centroids).argmin(dim=1)
    assignments = []
    for _ in range(steps):
        weights = adaptive_weights(points, labels, len(centroids))
        assignments.append(assign(points, centroids, rule, weights, labels))
        labels = assign(points, centroids, refine, weights, labels)
    return assignments
