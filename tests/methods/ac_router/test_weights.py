"""Feature weights: golden parity, the loop oracle, the paper's invariants."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ritornello.methods.ac_router import weights as weights_module
from ritornello.methods.ac_router.reference import adaptive_weights_loop
from ritornello.methods.ac_router.weights import adaptive_weights, token_weights

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}  # of the golden README
SWIN = {"clip": 1.5, "scale": "global_preclip"}
SOFT = {"eps": 0.35, "clip": 5.0, "scale": "global_postclip"}
RAW = {"clip": None, "scale": "none"}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def values(golden: Path) -> dict[str, Tensor]:
    arrays = np.load(golden / "ac_router" / "gates.npz")
    return {name: torch.from_numpy(np.asarray(x)) for name, x in arrays.items()}


def random_case(n: int = 60, d: int = 5, experts: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(n, d, generator=generator) * (1 + torch.arange(d))
    return tokens, torch.randint(experts, (n,), generator=generator)


@pytest.mark.parametrize("case", ["a", "b"])
@pytest.mark.parametrize(
    ("name", "options", "mixed"),
    [
        ("lm_mad", {}, False),
        ("lm_mad_mix", {}, True),
        ("lm_var", {"dispersion": "var", "eps": 0.1, **RAW}, False),
        ("lm_pair", {"dispersion": "pairwise", **RAW}, False),
        ("swin_mad", SWIN, False),
        ("swin_mad_mix", SWIN, True),
        ("swin_var", SWIN | {"clip": 10.0, "dispersion": "var"}, False),
    ],
)
def test_weights_equal_the_official_code(values, case, name, options, mixed):
    previous = values[f"{case}_prev_idx"]
    experts = int(values[f"{case}_n_experts"])
    weights = adaptive_weights(values[f"{case}_tokens"], previous, experts, **options)
    mixing = values[f"{case}_prev_score"] if mixed else None
    ours = token_weights(weights, previous, mixing)
    torch.testing.assert_close(ours, values[f"{case}_{name}_W"], **TOLERANCE)


@pytest.mark.parametrize("case", ["a", "b"])
@pytest.mark.parametrize("mixed", [False, True])
def test_soft_weights_equal_the_official_code(values, case, mixed):
    previous = values[f"{case}_soft_prev_idx"]
    experts = int(values[f"{case}_n_experts"])
    weights = adaptive_weights(values[f"{case}_soft_tokens"], previous, experts, **SOFT)
    mixing = values[f"{case}_soft_prev_logits"].softmax(-1) if mixed else None
    ours = token_weights(weights, previous, mixing)
    expected = values[f"{case}_soft_mad_mix_W" if mixed else f"{case}_soft_mad_W"]
    torch.testing.assert_close(ours, expected, **TOLERANCE)


@pytest.mark.parametrize(("name", "options"), [("lm_mad", {}), ("swin_mad", SWIN)])
@pytest.mark.parametrize("unused", [0, 3])
def test_official_degenerate_mode_equals_the_official_code(values, name, options, unused):
    """Trailing experts that nobody uses change nothing."""
    previous = values["deg_prev_idx"]
    weights = adaptive_weights(
        values["deg_tokens"], previous, 4 + unused, degenerate="official", **options
    )
    ours = token_weights(weights, previous)
    torch.testing.assert_close(ours, values[f"deg_{name}_W"], **TOLERANCE)


@pytest.mark.parametrize("dispersion", ["mad", "var", "pairwise"])
@pytest.mark.parametrize("scale", ["feature", "global_preclip", "global_postclip", "none"])
@pytest.mark.parametrize("n", [1, 33])
def test_fast_weights_equal_the_loop(dispersion, scale, n):
    tokens, assignment = random_case(n)
    options = {"dispersion": dispersion, "scale": scale, "clip": 2.0, "eps": 0.01}
    fast = adaptive_weights(tokens, assignment, 6, **options)
    slow = adaptive_weights_loop(tokens, assignment, 6, **options)
    torch.testing.assert_close(fast.double(), slow, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("dispersion", ["mad", "var", "pairwise"])
def test_many_clusters_and_many_blocks_give_the_same_weights(dispersion):
    """More than 1024 rows are summed in blocks."""
    tokens, assignment = random_case(1300, 3, 70)
    wide = adaptive_weights(tokens, assignment, 70, dispersion=dispersion, eps=0.1)
    slow = adaptive_weights_loop(tokens, assignment, 70, dispersion=dispersion, eps=0.1)
    torch.testing.assert_close(wide.double(), slow, rtol=1e-4, atol=1e-5)


def test_no_gradient_flows_through_the_weights():
    tokens, assignment = random_case()
    assert not adaptive_weights(tokens.requires_grad_(), assignment, 4).requires_grad


def test_shifting_a_cluster_changes_nothing():
    tokens, assignment = random_case()
    shifted = tokens + torch.randn(4, 5)[assignment]
    torch.testing.assert_close(
        adaptive_weights(shifted, assignment, 4),
        adaptive_weights(tokens, assignment, 4),
        rtol=1e-4,
        atol=1e-5,
    )


def test_units_of_a_feature_cancel():
    tokens, assignment = random_case()
    scaled = tokens * torch.tensor([1.0, 100.0, 0.1, 7.0, 3.0])
    options = {"eps": 1e-9, "clip": None}
    torch.testing.assert_close(
        adaptive_weights(scaled, assignment, 4, **options),
        adaptive_weights(tokens, assignment, 4, **options),
        rtol=1e-4,
        atol=1e-5,
    )


def test_order_of_tokens_and_names_of_experts_do_not_matter():
    tokens, assignment = random_case()
    weights = adaptive_weights(tokens, assignment, 4)
    order = torch.randperm(len(tokens))
    names = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(adaptive_weights(tokens[order], assignment[order], 4), weights)
    torch.testing.assert_close(adaptive_weights(tokens, names[assignment], 4)[names], weights)


def test_equal_spread_everywhere_gives_unit_weights():
    block = torch.randn(10, 3)
    tokens = torch.cat([block + shift for shift in (0.0, 5.0, -3.0)])
    assignment = torch.arange(3).repeat_interleave(10)
    weights = adaptive_weights(tokens, assignment, 3)
    torch.testing.assert_close(weights, torch.ones(3, 3), rtol=1e-3, atol=1e-4)


def test_mean_over_clusters_is_one_per_feature():
    tokens, assignment = random_case()
    weights = adaptive_weights(tokens, assignment, 4)
    torch.testing.assert_close(weights.mean(0), torch.ones(5))


def test_tight_features_weigh_more():
    tokens, assignment = random_case(400)
    tokens[assignment == 1, 2] *= 0.01
    weights = adaptive_weights(tokens, assignment, 4)
    assert weights[1, 2] == weights[:, 2].max()
    assert weights[1, 2] > 3


def test_degenerate_clusters_are_neutral_by_default():
    """Cluster 2 is empty, cluster 3 has one token: the others are as if both did not exist."""
    tokens, assignment = random_case(40, 5, 2)
    alone = adaptive_weights(tokens, assignment, 2)
    tokens = torch.cat([tokens, torch.randn(1, 5)])
    assignment = torch.cat([assignment, torch.tensor([3])])
    weights = adaptive_weights(tokens, assignment, 4)
    torch.testing.assert_close(weights[:2], alone)
    assert weights[2:].eq(1).all()
    official = adaptive_weights(tokens, assignment, 4, degenerate="official")
    assert official[:2].max() < 0.01  # what the neutral mode prevents


def test_both_modes_agree_when_no_cluster_is_degenerate():
    tokens, assignment = random_case()
    torch.testing.assert_close(
        adaptive_weights(tokens, assignment, 4),
        adaptive_weights(tokens, assignment, 4, degenerate="official"),
    )


@pytest.mark.parametrize("dispersion", ["mad", "var", "pairwise"])
@pytest.mark.parametrize("adds_by_matmul", [False, True])
@pytest.mark.parametrize("degenerate", ["neutral", "official"])
def test_masking_equals_removing(monkeypatch, dispersion, adds_by_matmul, degenerate):
    monkeypatch.setattr(weights_module, "_MATMUL_DEVICE", "cpu" if adds_by_matmul else "cuda")
    tokens, assignment = random_case()
    mask = torch.arange(len(tokens)) % 3 > 0
    tokens = tokens.masked_fill(~mask.unsqueeze(1), float("nan"))
    assignment[~mask] = 3  # the number of official clusters must not count them
    options = {"dispersion": dispersion, "degenerate": degenerate}
    masked = adaptive_weights(tokens, assignment, 4, token_mask=mask, **options)
    removed = adaptive_weights(tokens[mask], assignment[mask], 4, **options)
    torch.testing.assert_close(masked, removed, rtol=1e-4, atol=1e-5)


def test_no_tokens_give_unit_weights():
    weights = adaptive_weights(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 2)
    assert weights.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_measured_in_fp32(dtype):
    tokens, assignment = random_case()
    weights = adaptive_weights(tokens.to(dtype), assignment, 4)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, adaptive_weights(tokens.to(dtype).float(), assignment, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"assignment": torch.full((60,), 4)}, "assignment must lie in"),
        ({"assignment": torch.full((60,), -1)}, "assignment must lie in"),
        ({"assignment": torch.zeros(59, dtype=torch.long)}, "assignment must be"),
        ({"assignment": torch.zeros(60)}, "assignment must be int64"),
        ({"tokens": torch.zeros(60)}, "tokens must be floating"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"scale": "max"}, "scale must be one of"),
        ({"dispersion": "std"}, "dispersion must be one of"),
        ({"degenerate": "ignore"}, "degenerate must be one of"),
        ({"min_tokens": 0}, "min_tokens must be at least 1"),
        ({"token_mask": torch.ones(3, dtype=torch.bool)}, "token_mask must be"),
    ],
)
def test_bad_input_is_named(change, message):
    tokens, assignment = random_case()
    arguments = {"tokens": tokens, "assignment": assignment, "num_experts": 4} | change
    with pytest.raises(ValueError, match=message):
        adaptive_weights(**arguments)
