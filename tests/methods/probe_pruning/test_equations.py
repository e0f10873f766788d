"""Properties of selection, fusion, scores and history, and the literal formulas as oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ritornello.methods.probe_pruning import (
    channel_scores,
    effective_ratio,
    flap_layer_ratios,
    fuse_states,
    head_scores,
    num_channels_to_prune,
    reference,
    select_probe,
)
from ritornello.methods.probe_pruning.flops import LayerShape, count_flops
from ritornello.methods.probe_pruning.history import BlockHistory, mean_squares
from ritornello.methods.probe_pruning.selection import keep_highest


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("score", ["ppsp", "wanda_sp", "flap"])
@pytest.mark.parametrize(("dim", "heads", "head_dim"), [(1, 1, 1), (7, 3, 5), (64, 4, 16)])
def test_precomputed_scores_equal_the_literal_formula(score, dim, heads, head_dim):
    weight = rand(dim, heads * head_dim, seed=1) - 0.5
    energy = rand(heads * head_dim, seed=2) * 10
    torch.testing.assert_close(
        channel_scores(energy, weight, score), reference.channel_scores(energy, weight, score)
    )
    torch.testing.assert_close(
        head_scores(energy, weight, heads, score),
        reference.head_scores(energy, weight, heads, score),
    )


def test_a_ppsp_head_is_a_joint_norm_not_a_sum():
    # One output; two heads of two channels: (3, 4) has norm 5, (6, 0) has norm 6, sums 7 and 6.
    energy, weight = torch.tensor([3.0, 4.0, 6.0, 0.0]), torch.ones(1, 4)
    assert head_scores(energy, weight, 2, "ppsp").tolist() == [5.0, 6.0]
    assert head_scores(energy, weight, 2, "flap").tolist() == [7.0, 6.0]


def test_overflowing_energies_rank_highest():
    scores = channel_scores(torch.tensor([1.0, torch.inf]), torch.ones(2, 2))
    assert torch.isfinite(scores).all()
    assert scores.argmax() == 1
    for score in ("ppsp", "flap"):
        heads = head_scores(torch.tensor([1.0, 2.0, 3e38, 3e38]), torch.ones(2, 4), 2, score)
        assert torch.isfinite(heads).all()
        assert heads.argmax() == 1


@given(st.floats(0, 1e6), st.floats(0, 1e6))
@settings(max_examples=200, deadline=None)
def test_fusion_lies_between_its_inputs_and_leans_to_the_larger(probe, history):
    p, h = torch.tensor([[probe]]), torch.tensor([[history]])
    fused = fuse_states(p, h).item()
    slack = 1e-6 + 1e-6 * max(probe, history)
    assert min(probe, history) - slack <= fused <= max(probe, history) + slack
    assert fused >= (probe + history) / 2 - slack
    torch.testing.assert_close(fuse_states(p, h), reference.fuse(p, h), rtol=1e-5, atol=1e-6)


def test_fusion_without_one_side_is_the_other():
    states, nothing = rand(5, 3), torch.zeros(5, 3)
    torch.testing.assert_close(fuse_states(states, nothing), states, rtol=0, atol=1.1e-6)
    assert torch.equal(fuse_states(nothing, states), states)
    assert torch.equal(fuse_states(states, nothing, "none"), states)
    torch.testing.assert_close(fuse_states(states, nothing, "fixed", 0.25), states / 4)


def test_fusion_is_per_position_not_of_sums():
    p, h = torch.tensor([[4.0], [0.0]]), torch.tensor([[0.0], [4.0]])
    assert fuse_states(p, h).sum().item() == pytest.approx(8, abs=1e-5)
    assert fuse_states(p.sum(0, keepdim=True), h.sum(0, keepdim=True)).item() == pytest.approx(4)


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 40, 4), (7, 3, 4), (20, 64, 8)])
def test_probe_equals_the_loop_and_ignores_scale(shape):
    residual = rand(*shape, seed=5) - 0.5
    ratios = {"tokens": 0.5, "samples": 0.05}
    probe, samples, tokens = select_probe(residual * 2, residual, ratios)
    assert (samples.tolist(), tokens.tolist()) == reference.select_probe(residual, 0.5, 0.05)
    assert torch.equal(probe, (residual * 2)[samples][:, tokens])
    for scale in (1e-3, 1e3):
        _, s, t = select_probe(residual, residual * scale, ratios)
        assert torch.equal(s, samples)
        assert torch.equal(t, tokens)


def test_order_and_residual_decide_the_probe():
    # Token norms: sample 0 has one huge token, sample 1 is even and larger elsewhere.
    residual = torch.tensor([[[9.0], [0.0], [0.0], [0.0]], [[1.0], [5.0], [5.0], [5.0]]])
    hidden = torch.ones_like(residual)
    ratios = {"tokens": 0.5, "samples": 0.5}
    _, samples, tokens = select_probe(hidden, residual, ratios, ("tokens", "samples"))
    assert (samples.tolist(), tokens.tolist()) == ([0], [0, 1])
    _, samples, tokens = select_probe(hidden, residual.flip(0), ratios, ("samples", "tokens"))
    assert samples.tolist() == [1]
    _, samples, tokens = select_probe(hidden, residual, {"tokens": 0.5}, ("tokens",))
    assert samples.tolist() == [0, 1]


def test_few_tokens_give_their_lowest_place_to_the_first():
    residual = torch.arange(8.0).view(1, 8, 1)
    assert select_probe(residual, residual, {"tokens": 0.5}, ("tokens",))[2].tolist() == [
        0,
        5,
        6,
        7,
    ]
    residual = torch.arange(22.0).view(1, 22, 1)
    tokens = select_probe(residual, residual, {"tokens": 0.5}, ("tokens",))[2]
    assert tokens.tolist() == list(range(11, 22))


def test_ties_go_to_the_lower_position():
    assert keep_highest(torch.tensor([1.0, 2.0, 2.0, 2.0]), 2).tolist() == [1, 2]


def test_history_is_a_running_mean_in_any_split():
    states = rand(12, 5, 4)
    for split in (1, 4, 12):
        history = BlockHistory.zeros(states, flap=True, legacy_flap=False)
        for batch in states.split(split):
            history.accumulate(batch)
        history.finish()
        torch.testing.assert_close(history.energy, states.square().mean(0))
        about_mean = (states - states.mean((0, 1))).square().mean(0)
        torch.testing.assert_close(history.fluctuation, about_mean, rtol=1e-4, atol=1e-6)


def test_legacy_fluctuations_follow_the_published_recursion():
    first, second = rand(2, 3, 4, seed=1), rand(2, 3, 4, seed=2)
    history = BlockHistory.zeros(first, flap=True, legacy_flap=True)
    history.accumulate(first)
    assert not history.fluctuation.any()
    history.accumulate(second)
    before = first.mean(0) / 2  # the batch mean, divided by n + B = 2 once more
    after = before / 2 + second.mean(0) / 4
    expected = ((second - after.mean(0)) * (second - before.mean(0))).sum(0) / 4
    torch.testing.assert_close(history.mean, after)
    torch.testing.assert_close(history.fluctuation, expected)


def test_moving_average_touches_kept_channels_and_served_positions_only():
    history = BlockHistory(energy=rand(6, 5))
    before, kept = history.energy.clone(), torch.tensor([1, 3])
    fresh = rand(4, 2, seed=9)
    history.update(fresh, kept, score="ppsp", momentum=0.99)
    expected = before.clone()
    expected[:4, kept] = 0.99 * before[:4, kept] + 0.01 * fresh
    torch.testing.assert_close(history.energy, expected)
    untouched = torch.ones(6, 5, dtype=torch.bool)
    untouched[:4, kept] = False
    assert torch.equal(history.energy[untouched], before[untouched])


@pytest.mark.parametrize("center", [False, True])
def test_pads_do_not_count_in_means(center):
    states, present = rand(3, 4, 2), torch.ones(3, 4, dtype=torch.bool)
    present[0, :2] = False
    states[0, :2] = 1e4
    found = mean_squares(states, present, center=center)
    shift = states[present].mean(0) if center else 0
    expected = (states[1:, 0] - shift).square().sum(0) / 2.001
    torch.testing.assert_close(found[0], expected, rtol=1e-3, atol=1e-5)


def test_effective_ratio_spreads_the_ratio_over_the_other_layers():
    assert effective_ratio(0.4, 32, 3) == 0.44
    with pytest.raises(ValueError, match="lower ratio or skip fewer"):
        effective_ratio(0.4, 5, 3)
    with pytest.raises(ValueError, match="num_skipped"):
        effective_ratio(0.4, 5, 5)


@given(st.integers(1, 400), st.floats(0, 0.99), st.integers(1, 64))
@settings(max_examples=200, deadline=None)
def test_kept_channels_are_a_multiple_or_all(channels, ratio, multiple):
    pruned = num_channels_to_prune(channels, ratio, multiple)
    assert 0 <= pruned <= ratio * channels
    assert pruned == 0 or (channels - pruned) % multiple == 0


def test_flap_removes_the_lowest_standardised_units_up_to_the_cost():
    heads = [torch.tensor([0.0, 0.0, 9.0, 9.0]), torch.tensor([5.0, 5.0, 7.0, 7.0])]
    channels = [torch.tensor([1.0, 2.0, 3.0, 4.0])] * 2
    found = flap_layer_ratios(heads, channels, 2, 0.5, 2.0)
    # Cost 4 heads x 2 + 8 channels = 16, half of it is 8. In both layers the standardised scores
    # are -0.87 and 0.87 for heads and -1.16, -0.39, 0.39, 1.16 for channels: two channels (2), two
    # heads (6), two channels (8), and the element after the budget goes too.
    assert found == [(0.5, 0.75), (0.5, 0.75)]
    assert flap_layer_ratios(heads, channels, 2, 0.0, 2.0) == [(0.0, 0.0)] * 2


def test_flops_follow_the_formulas():
    shape = LayerShape(dim=4096, query_dim=4096, key_value_dim=4096, hidden=11008, gated=True)
    b, s, d, f = 20, 1024, 4096, 11008
    dense = 2 * b * s * 4 * d * d + 4 * b * s * s * d + 6 * b * s * d * f
    kept = dict.fromkeys(range(3, 32), (18 * 128, 6208))
    counted = count_flops(shape, kept, 32, b, s, probe=(1, 512))
    assert counted.dense == 32 * dense
    probe = 2 * 512 * 3 * d * d + 4 * 512 * 512 * d + 4 * 512 * d * f
    assert counted.probe == 29 * probe
    # The paper speaks of about 1.5 %.
    assert 0.012 < counted.probe_share < 0.018
    assert counted.pruned_share == pytest.approx(0.6, abs=0.03)
    assert counted.pruned_layers < counted.dense_pruned_layers
