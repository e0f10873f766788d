"""Removal curves: equal to the loops, and the invariants that the definitions imply."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from ritornello.methods.f_fidelity import (
    RemovalSpec,
    degrade,
    f_fidelity,
    fidelity,
    r_fidelity,
    reference,
    removal_curve,
)
from ritornello.methods.f_fidelity.curves import removal_rank
from ritornello.methods.f_fidelity.masks import keyed_uniform
from ritornello.methods.f_fidelity.removal import count_removed, drop_probability

SIZES = [0.1, 0.25, 0.5, 0.9, 1.0]
HOW = {"plain": {}, "r": {"alpha": 0.5}, "f": {"alpha": 0.5, "beta": 0.1}}


@pytest.fixture
def case(linear_judge):
    judge, x, labels, scores = linear_judge(batch=6)
    return judge, x, labels, scores.sum(1)


@pytest.mark.parametrize("order", ["morf", "lerf"])
@pytest.mark.parametrize("kind", HOW)
def test_vectorised_equals_the_loops(case, order, kind):
    judge, x, labels, scores = case
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]
    how = {"n_samples": 7, "generator": draws[0], "batch_size": 11, **HOW[kind]}
    ours = removal_curve(judge, *case[1:], SIZES, order=order, **how)
    theirs = reference.removal_curve(
        judge, x, labels, scores, SIZES, order=order, n_samples=7, generator=draws[1], **HOW[kind]
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", HOW)
def test_batching_changes_nothing(case, kind):
    curves = [
        removal_curve(case[0], *case[1:], SIZES, n_samples=9, batch_size=size, **HOW[kind])
        for size in (1, 13, 500)
    ]
    torch.testing.assert_close(curves[0], curves[1])
    torch.testing.assert_close(curves[0], curves[2])


def test_alpha_and_beta_of_one_are_plain_fidelity(case):
    whole, full = fidelity(*case, SIZES), f_fidelity(*case, SIZES, alpha=1.0, beta=1.0)
    for name in ("morf", "lerf", "kept", "clean"):
        torch.testing.assert_close(getattr(whole, name), getattr(full, name))


def test_a_vanishing_cap_leaves_the_clean_accuracy(case):
    found = f_fidelity(*case, SIZES, beta=1e-7)
    assert not found.plus.any()
    assert not found.minus.any()


def test_fid_minus_is_lerf_at_the_complement(case):
    found = r_fidelity(*case, [0.25, 0.5])
    mirrored = removal_curve(*case, [0.5, 0.75], order="lerf", alpha=0.5)
    torch.testing.assert_close(found.kept, mirrored[:, 1:].flip(1))
    torch.testing.assert_close(found.delta, found.plus - found.minus)


def test_removing_everything_keeps_nothing_to_tell_inputs_apart(case):
    found = fidelity(*case, [1.0])
    # The whole explanation is kept: Fid- is 0; all is removed: MoRF and LeRF meet.
    assert found.minus.item() == 0
    torch.testing.assert_close(found.morf, found.lerf)


def test_a_judge_that_sees_nothing_has_flat_curves(case):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 1.0]]).expand(len(x), 2)

    _, x, _, scores = case
    curve = removal_curve(Constant().eval(), x, torch.ones(6).long(), scores, SIZES, alpha=0.5)
    assert bool((curve == 1).all())


def test_only_the_order_of_scores_counts(case):
    judge, x, labels, scores = case
    bent = scores.exp() ** 3 + 5
    for kind in HOW.values():
        a, b = (removal_curve(judge, x, labels, s, SIZES, **kind) for s in (scores, bent))
        torch.testing.assert_close(a, b)


def test_masks_are_coupled_across_sizes_and_prefixes_of_samples():
    images = torch.tensor([3, 0])
    few, many = (keyed_uniform(5, images, n, 50) for n in (2, 6))
    torch.testing.assert_close(few, many[:, :2])
    torch.testing.assert_close(few[1:], keyed_uniform(5, images[1:], 2, 50))
    assert not torch.equal(few, keyed_uniform(6, images, 2, 50))


def test_keyed_numbers_are_uniform_and_uncorrelated():
    u = keyed_uniform(0, torch.arange(20), 50, 100).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert u.mean().item() == pytest.approx(0.5, abs=0.005)
    assert u.var().item() == pytest.approx(1 / 12, abs=0.002)
    for axis in range(3):
        shifted = u.roll(1, axis)
        correlation = ((u - 0.5) * (shifted - 0.5)).mean().item() * 12
        assert abs(correlation) < 0.02


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.001, 1.0))
def test_expected_removals_never_pass_the_cap(elements, alpha, beta, size):
    d = torch.tensor([elements])
    k = count_removed(torch.tensor([size]), d)
    assert 0 <= k.item() <= elements
    q = drop_probability(k, d[:, None], alpha, beta).double()
    assert (q * k).item() <= beta * elements * (1 + 1e-6)
    assert q.item() <= alpha * (1 + 1e-6)


def test_counts_by_hand():
    d = torch.tensor([100, 1024])
    sizes = torch.tensor([0.05, 0.29, 1.0], dtype=torch.float64)
    assert count_removed(sizes, d).tolist() == [[5, 29, 100], [51, 296, 1024]]
    # int(d/100·(i+1)), at most d: 6 %, 30 %, all.
    legacy = count_removed(sizes, d, legacy_offset=True)
    assert legacy.tolist() == [[6, 30, 100], [61, 307, 1024]]


def test_sizes_are_not_rounded_to_single_precision():
    """5/6 in float32 times 192 falls short of 160."""

    class Sum(nn.Module):
        def forward(self, x):
            total = x.flatten(1).sum(1)
            return torch.stack([total - 32.5, 32.5 - total], 1)

    scores = torch.arange(192.0).view(1, 12, 16)
    image, labels = torch.ones(1, 1, 12, 16), torch.zeros(1).long()
    assert fidelity(Sum().eval(), image, labels, scores, [5 / 6]).plus.item() == 1


def test_ties_go_to_the_lower_index_in_either_order():
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0]])
    free = torch.ones(1, 4, dtype=torch.bool)
    assert removal_rank(scores, free, "morf").tolist() == [[2, 0, 1, 3]]
    assert removal_rank(scores, free, "lerf").tolist() == [[0, 2, 3, 1]]


def test_early_stop_stays_within_its_bound(case):
    full = removal_curve(*case, SIZES, alpha=0.5, n_samples=200)
    quick = removal_curve(*case, SIZES, alpha=0.5, n_samples=200, early_stop=10)
    assert float((full - quick).mean().abs()) < 1 / 11
    undecided = (quick > 0) & (quick < 1)
    torch.testing.assert_close(full[undecided], quick[undecided])


def test_early_stop_judges_few_masks_where_the_answer_is_clear(case):
    """Asked of whole inputs, and of three masks at every fourth size and the last."""
    judge, x, labels, scores = case
    asked = []
    judge.register_forward_hook(lambda *a: asked.append(len(a[2])))
    with torch.no_grad():
        judge.linear.weight.zero_()
    labels = judge(x).argmax(1)
    asked.clear()
    sizes = [i / 20 for i in range(1, 21)]
    curve = removal_curve(judge, x, labels, scores, sizes, alpha=0.5, n_samples=50, early_stop=3)
    assert bool((curve == 1).all())
    assert sum(asked) == 6 * (1 + 6 * 3)


def test_a_single_change_between_sizes_is_found_exactly():
    class Bright(nn.Module):
        def forward(self, x):
            left = x.flatten(1).sum(1) - 50.5
            return torch.stack([left, -left], 1)

    x, y = torch.ones(2, 1, 10, 10), torch.zeros(2).long()
    scores = torch.arange(100.0).view(1, 10, 10).expand(2, 10, 10)
    sizes = [i / 20 for i in range(1, 21)]
    how = {"alpha": 1 - 1e-7, "n_samples": 4, "early_stop": 2}
    quick = removal_curve(Bright().eval(), x, y, scores, sizes, **how)
    assert quick[0, 1:].tolist() == [1.0] * 9 + [0.0] * 11


def test_a_generator_can_seed_paired_masks(case):
    a, b, c = (
        removal_curve(
            *case, SIZES, alpha=0.5, paired=True, generator=torch.Generator().manual_seed(s)
        )
        for s in (1, 1, 2)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_probabilities_instead_of_labels(case):
    judge, x, labels, _ = case
    curve = removal_curve(*case, [0.5], reduce="prob")
    expected = judge(x).softmax(1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(curve[:, 0], expected.detach())


def test_pixels_elements_and_timesteps_are_removed_together(case):
    _, x, _, _ = case
    keep = torch.zeros(6, 36, dtype=torch.bool)
    keep[:, 5] = True
    out = RemovalSpec().apply(x, keep).flatten(2)
    torch.testing.assert_close(out[..., 5], x.flatten(2)[..., 5])
    assert not out[..., :5].any()
    last = RemovalSpec(channels_last=True).apply(x.movedim(1, -1), keep).movedim(-1, 1)
    torch.testing.assert_close(last.flatten(2), out)
    series = x.flatten(2)  # (6, time 3, sensors 36)
    kept = torch.tensor([[True, False, True]]).expand(6, 3)
    rows = RemovalSpec("mean", "timestep").apply(series, kept)
    torch.testing.assert_close(rows[:, 1], series.mean(1))
    torch.testing.assert_close(rows[:, ::2], series[:, ::2])
    cells = RemovalSpec(torch.tensor(7.0), "element").apply(series, torch.zeros(6, 108).bool())
    assert bool((cells == 7).all())


def test_noisy_linear_imputation_restores_a_plane():
    """A plane solves the neighbour equations, up to the border's one-sided weights."""
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    image = (0.3 * x - 0.2 * y)[None, None]
    keep = torch.ones(1, 12, 12, dtype=torch.bool)
    keep[0, 4:8, 3:9] = False
    filled = RemovalSpec(baseline="linear").apply(image, keep.flatten(1))
    torch.testing.assert_close(filled, image, atol=0.06, rtol=0)
    torch.testing.assert_close(filled[0, 0][keep[0]], image[0, 0][keep[0]])


def test_degrading_keeps_the_multiset_and_the_number_that_may_move(generator):
    scores = torch.randn(4, 5, 5, generator=generator)
    assert torch.equal(degrade(scores, 0.0, generator), scores)
    for p in (0.2, 1.0):
        moved = degrade(scores, p, generator)
        torch.testing.assert_close(
            moved.flatten(1).sort(1).values, scores.flatten(1).sort(1).values
        )
        assert bool(((moved != scores).flatten(1).sum(1) <= int(p * 25)).all())
    assert not torch.equal(degrade(scores, 1.0, generator), scores)


class Words(nn.Module):
    """Class 1 if token 7 is seen."""

    def forward(self, input_ids, attention_mask):
        seen = ((input_ids == 7) & attention_mask.bool()).any(1).float()
        return torch.stack([0.5 - seen, seen - 0.5], 1)


@pytest.mark.parametrize("drop", [False, True])
def test_special_and_padded_tokens_stay(drop):
    ids = torch.tensor([[1, 7, 9, 8, 2, 0], [1, 9, 7, 2, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    removal = RemovalSpec(3, "token", special_ids=(0, 1, 2), drop=drop)
    assert removal.removable(inputs).sum(1).tolist() == [3, 2]
    # The specials score highest: they must not use up the places of what can be removed.
    scores = torch.tensor([[9.0, 3, 2, 1, 9, 9], [9.0, 1, 2, 9, 9, 9]])
    labels = torch.ones(2).long()
    curve = removal_curve(Words().eval(), inputs, labels, scores, [0.25, 0.5, 1.0], removal=removal)
    # ⌊.25·3⌋ = 0 and ⌊.25·2⌋ = 0 words go; at .5 one word each: token 7 comes first in both.
    assert curve.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]


BAD = {
    "scores": ({"scores": torch.zeros(6, 3, 6, 6)}, "resize the maps"),
    "nan": ({"scores": torch.full((6, 6, 6), torch.nan)}, "NaN"),
    "labels": ({"y": torch.zeros(6)}, "y must be"),
    "alpha": ({"alpha": 0.0}, r"alpha must be in \(0, 1\], got 0.0"),
    "beta": ({"alpha": 0.5, "beta": 1.5}, "beta must be"),
    "cap": ({"beta": 0.1}, "give alpha too"),
    "order": ({"order": "first"}, "order must be morf or lerf"),
    "sizes": ({"sizes": [0.5, 0.2]}, "increasing shares"),
    "zero": ({"sizes": [0.0, 0.2]}, "increasing shares"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(case, name):
    judge, x, labels, scores = case
    change, message = BAD[name]
    arguments = {"y": labels, "scores": scores, "sizes": [0.5], **change}
    with pytest.raises(ValueError, match=message):
        removal_curve(judge, x, **arguments)


@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: {"logits": x}, lambda x: None])
def test_other_outputs_than_logits_are_refused(case, wrap):
    judge, x, labels, scores = case

    class Wrapped(nn.Module):
        def forward(self, inputs):
            return wrap(judge(inputs))

    with pytest.raises(ValueError, match="model must give logits"):
        removal_curve(Wrapped().eval(), x, labels, scores, [0.5])


def test_masks_and_integer_ranks_are_scores(case):
    judge, x, labels, scores = case
    ranks = scores.flatten(1).argsort(1).argsort(1).view(scores.shape)
    for order in ("morf", "lerf"):
        expected = removal_curve(judge, x, labels, scores, [0.2, 0.5], order=order)
        for kind in (torch.int64, torch.uint8):
            found = removal_curve(judge, x, labels, ranks.to(kind), [0.2, 0.5], order=order)
            assert torch.equal(found, expected)
        mask = ranks >= ranks.amax() // 2
        found = removal_curve(judge, x, labels, mask, [0.2, 0.5], order=order)
        expected = removal_curve(judge, x, labels, mask.float(), [0.2, 0.5], order=order)
        assert torch.equal(found, expected)


def test_more_bad_input_is_named(case):
    judge, x, labels, scores = case
    with pytest.raises(ValueError, match=r"call model.eval\(\)"):
        removal_curve(nn.Sequential(judge).train(), x, labels, scores, [0.5])
    judge.eval()
    with pytest.raises(ValueError, match="unit must be one of"):
        RemovalSpec(unit="patch")
    with pytest.raises(ValueError, match="token id"):
        RemovalSpec(unit="token")
    with pytest.raises(ValueError, match="mapping with input_ids"):
        removal_curve(judge, x, labels, scores, [0.5], removal=RemovalSpec(3, "token"))
    with pytest.raises(ValueError, match="n_samples"):
        removal_curve(judge, x, labels, scores, [0.5], n_samples=0)
    with pytest.raises(ValueError, match="early_stop"):
        r_fidelity(judge, x, labels, scores, [0.5], n_samples=5, early_stop=9)
    with pytest.raises(ValueError, match="p must be in"):
        degrade(scores, 1.2)
    with pytest.warns(UserWarning, match="ranking is undefined"):
        removal_curve(judge, x, labels, torch.ones(6, 6, 6), [0.5])


def test_curves_can_be_used_in_autograd_and_under_autocast(case):
    curve = removal_curve(*case, [0.5], alpha=0.5)
    assert not curve.is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = removal_curve(*case, [0.5], alpha=0.5)
    assert half.dtype == torch.float32
    assert float((half - curve).abs().mean()) < 0.2
