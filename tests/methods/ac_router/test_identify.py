"""Identification of clusters that are tight on features of their own."""

import pytest
import torch

from ritornello.methods.ac_router.identify import assign, feature_mixture, identify

MIXTURE = {
    "clusters": 4,
    "features": 8,
    "tight_features": 3,
    "tight_spread": 0.1,
    "loose_spread": 2.0,
}


def test_mixture_is_tight_where_it_says(generator):
    mixture = feature_mixture(points=4000, generator=generator, **MIXTURE)
    assert mixture.tight.sum(1).eq(3).all()
    for k in range(4):
        spread = mixture.points[mixture.labels == k].std(0)
        assert spread[mixture.tight[k]].max() < 0.15
        assert spread[~mixture.tight[k]].min() > 1.7


def test_own_metric_equals_its_definition():
    points, centroids, weights = torch.randn(5, 3), torch.randn(2, 3), torch.rand(2, 3)
    distance = torch.stack(
        [
            torch.stack([(weights[k] * (x - centroids[k]).abs()).sum() for k in range(2)])
            for x in points
        ]
    )
    chosen = assign(points, centroids, "own_metric", weights, torch.zeros(5, dtype=torch.long))
    assert torch.equal(chosen, distance.argmin(1))


def test_weights_recover_what_the_nearest_centre_misses(generator):
    """The mixture of the small profile."""
    mixture = feature_mixture(
        points=2000,
        clusters=8,
        features=16,
        tight_features=4,
        tight_spread=0.25,
        loose_spread=2.0,
        generator=generator,
    )

    def accuracy(rule):
        last = identify(mixture.points, mixture.centroids, rule)[-1]
        return (last == mixture.labels).float().mean().item()

    assert accuracy("own_metric") > 0.97
    assert accuracy("own_metric") > accuracy("nearest") + 0.05
    assert accuracy("ac") > accuracy("dot") + 0.03


def test_bad_arguments_are_named(generator):
    with pytest.raises(ValueError, match="tight_features must be in"):
        feature_mixture(points=9, generator=generator, **(MIXTURE | {"tight_features": 9}))
    with pytest.raises(ValueError, match="rule must be one of"):
        identify(torch.randn(5, 3), torch.randn(2, 3), "cosine")
