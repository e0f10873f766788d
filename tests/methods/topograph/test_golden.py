"""Equal to the published code's values, and to an independent exact count."""

import numpy as np
import pytest
import torch

from ritornello.methods.topograph import TopographLoss, critical_regions, diu, published_count
from ritornello.methods.topograph.codes import diagonal_rule
from ritornello.methods.topograph.overlap import cldice_loss, dice_loss

BACKENDS = ("compiled", "scipy", "torch", "reference")
RTOL, ATOL = 1e-5, 1e-6  # as the golden values state


@pytest.fixture(scope="module")
def pairs(golden):
    return np.load(golden / "topograph" / "critical_and_diu.npz")


@pytest.fixture(scope="module")
def losses(golden):
    return np.load(golden / "topograph" / "losses.npz")


def masks(pairs, number):
    return torch.from_numpy(pairs[f"pred_{number}"]), torch.from_numpy(pairs[f"gt_{number}"])


def test_rule_of_all_blocks(pairs):
    assert np.array_equal(diagonal_rule().numpy(), pairs["diag_table"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_critical_regions(pairs, backend):
    for number in range(int(pairs["n"])):
        regions, count = critical_regions(*masks(pairs, number), pad=False, backend=backend)
        assert np.array_equal(regions.numpy(), pairs[f"critical_{number}"])
        assert count == pairs[f"critical_{number}"].max() + 1


@pytest.mark.parametrize("backend", ["compiled", "scipy", "torch"])
@pytest.mark.parametrize("boundary", ["free", "padded"])
def test_exact_diu(pairs, boundary, backend):
    for number in range(int(pairs["n"])):
        found = diu(*masks(pairs, number), boundary=boundary, backend=backend)
        parts = [int(x) for x in (found.ker_fg, found.coker_fg, found.ker_bg, found.coker_bg)]
        assert parts == pairs[f"diu_exact_{boundary}_{number}"].tolist()
        four = diu(*masks(pairs, number), 4, boundary, backend)
        # The reference counts in the complements: there the background is the foreground.
        parts = [int(x) for x in (four.ker_bg, four.coker_bg, four.ker_fg, four.coker_fg)]
        assert parts == pairs[f"diu_exact4_{boundary}_{number}"].tolist()


def test_published_count_is_near(pairs):
    """Its value depends on the order of nodes: equal on eight pairs, off by at most 2 on two."""
    counts = [published_count(*masks(pairs, n)) for n in range(int(pairs["n"]))]
    official = [int(pairs[f"diu_official_{n}"]) for n in range(int(pairs["n"]))]
    assert counts[:8] == official[:8]
    assert all(abs(a - b) <= 2 for a, b in zip(counts, official, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("aggregation", ["mean", "rms", "sum", "max", "min", "ce"])
def test_losses_and_gradients(losses, aggregation, backend):
    for k in range(int(losses["n"])):
        target = torch.from_numpy(losses[f"target_{k}"])
        for name, include_background in (("bg", True), ("nobg", False)):
            loss = TopographLoss(
                include_background=include_background,
                aggregation=aggregation,
                pad=False,
                backend=backend,
            )
            logits = torch.from_numpy(losses[f"logits_{k}"]).requires_grad_()
            value = loss(logits, target)
            value.backward()
            key = f"{k}_{name}_{aggregation}"
            expected = torch.from_numpy(losses[f"loss_{key}"])
            torch.testing.assert_close(value, expected, rtol=RTOL, atol=ATOL)
            if f"grad_{key}" in losses:
                expected = torch.from_numpy(losses[f"grad_{key}"])
                torch.testing.assert_close(logits.grad, expected, rtol=RTOL, atol=ATOL)


def test_dice_and_cldice(losses):
    for k in range(int(losses["n"])):
        scores = torch.from_numpy(losses[f"logits_{k}"]).softmax(1)
        target = torch.from_numpy(losses[f"target_{k}"])
        for value, name in (
            (dice_loss(scores, target), f"dice_{k}"),
            (cldice_loss(scores, target, 5), f"cldice_it5_fgonly_{k}"),
        ):
            torch.testing.assert_close(value, torch.from_numpy(losses[name]), rtol=RTOL, atol=ATOL)
