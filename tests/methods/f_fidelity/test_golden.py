"""Equality with the published evaluation functions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ritornello.methods.f_fidelity import degrade, rank_agreement, removal_curve

GOLDEN = Path(__file__).parents[2] / "golden" / "f_fidelity"
SIZES = [i / 100 for i in range(5, 101, 5)]


def load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def test_fill_recipe(fill):
    expected = [-0.6543603257974433, 0.4888936898505789, -0.28950115686828704]
    assert fill("a", (3,)).tolist() == expected


CURVES = load("curves")


@pytest.fixture(params=CURVES, ids=lambda case: case["tag"])
def case(request, golden_judge):
    judge, x, label, scores = golden_judge(request.param)
    assert label.item() == request.param["label"]

    def curve(order, **how):
        return removal_curve(
            judge, x, label, scores, SIZES, order=order.lower(), legacy_offset=True, **how
        )[0].tolist()

    return request.param, curve


@pytest.mark.parametrize("order", ["MoRF", "LeRF"])
def test_plain_curves_are_equal(case, order):
    values, curve = case
    assert curve(order) == values[f"fidelity_{order}"]


@pytest.mark.parametrize("order", ["MoRF", "LeRF"])
@pytest.mark.parametrize("kind", ["r", "f"])
def test_stochastic_curves_are_equal_under_the_same_draws(case, order, kind):
    values, curve = case
    beta = values["beta"] if kind == "f" else None
    how = {"alpha": values["alpha"], "beta": beta, "n_samples": 50}
    expected = pytest.approx(values[f"{kind}_fidelity_{order}_torchseed"], abs=1e-6)
    generator = torch.Generator().manual_seed(values["seed"])
    assert curve(order, generator=generator, **how) == expected
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(values["seed"])
        assert curve(order, paired=False, **how) == expected


@pytest.mark.parametrize("order", ["MoRF", "LeRF"])
@pytest.mark.parametrize("kind", ["r", "f"])
def test_keyed_masks_have_the_same_expectation(case, order, kind):
    values, curve = case
    beta = values["beta"] if kind == "f" else None
    ours = curve(order, alpha=values["alpha"], beta=beta, n_samples=4000, batch_size=4000)
    assert ours == pytest.approx(values[f"{kind}_fidelity_{order}_expect"], abs=0.03)


def test_degraded_scores_are_equal(fill):
    groups = load("degrade")
    for group in groups if isinstance(groups, list) else [groups]:
        scores = torch.from_numpy(fill(group["tag"], tuple(group["shape"])))[None]
        for one in group["cases"]:
            ours = degrade(scores, one["p"], np.random.RandomState(one["np_seed"]))
            np.testing.assert_allclose(ours.flatten(), one["result"], atol=1e-11)


@pytest.mark.parametrize("case", load("rank_metrics"), ids=lambda case: case["tag"])
def test_rank_correlations_are_equal(case, fill):
    shape = case["n_explainers"], case["n_sparsity"]
    morf, lerf = fill(f"{case['tag']}.morf", shape), fill(f"{case['tag']}.lerf", shape)
    if case["ties"]:
        morf, lerf = np.round(morf * 3) / 3, np.round(lerf * 3) / 3
    quality = np.linspace(1, 0, shape[0])
    pairs = {"morf_vs_gt": (morf, quality), "lerf_vs_gt": (lerf, quality)}
    for pair, sides in {**pairs, "morf_vs_lerf": (morf, lerf)}.items():
        macro, micro, place = rank_agreement(*sides)
        assert macro == pytest.approx(case["macro"][pair], abs=1e-9)
        assert micro == pytest.approx(case["micro"][pair], abs=1e-9)
        assert place == 1
