"""Balance losses and routing statistics on cases small enough to know."""

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from ritornello.common.moe import RoutingState
from ritornello.common.moe.losses import balance_loss, importance_loss, load_loss, z_loss
from ritornello.common.moe.statistics import (
    load,
    load_entropy,
    normalized_mutual_information,
    stability,
)


def state(indices: list[list[int]], logits: torch.Tensor) -> RoutingState:
    chosen = torch.tensor(indices)
    return RoutingState(chosen, torch.ones(chosen.shape) / chosen.shape[1], logits)


def test_balance_loss_is_one_when_even_and_the_number_of_experts_when_collapsed():
    even = state([[0], [1], [2], [3]], 50 * torch.eye(4))
    collapsed = state([[0]] * 4, torch.tensor([[50.0, 0, 0, 0]] * 4))
    assert balance_loss(even).item() == pytest.approx(1.0)
    assert balance_loss(collapsed).item() == pytest.approx(4.0)


def test_balance_loss_per_slot_is_smaller_by_k():
    two = state([[0, 1], [1, 2]], torch.randn(2, 3))
    assert balance_loss(two).item() == pytest.approx(2 * balance_loss(two, per_slot=True).item())


def test_balance_loss_pushes_the_overloaded_expert_down():
    logits = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]], requires_grad=True)
    balance_loss(state([[0], [0], [0], [1]], logits)).backward()
    assert logits.grad[:, 0].sum() > 0  # descending lowers the logit of expert 0


def test_importance_and_load_vanish_for_even_routing_and_not_otherwise():
    even = state([[0], [1]], 10 * torch.eye(2))
    uneven = state([[0], [0]], torch.tensor([[10.0, 0.0], [10.0, 0.0]]))
    for loss in (importance_loss, load_loss):
        assert loss(even).item() == pytest.approx(0, abs=1e-5)
        assert loss(uneven).item() > 0.1


def test_z_loss_is_the_mean_squared_log_partition():
    logits = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    expected = (torch.log(torch.tensor(2.0)) ** 2 + (1 + torch.log(torch.tensor(2.0))) ** 2) / 2
    torch.testing.assert_close(z_loss(logits), expected)


def test_load_and_its_entropy():
    indices = torch.tensor([[0, 1], [0, 2]])
    assert load(indices, 4).tolist() == [0.5, 0.25, 0.25, 0.0]
    assert load_entropy(torch.arange(4).view(4, 1), 4).item() == pytest.approx(1.0)
    assert load_entropy(torch.zeros(4, 1, dtype=torch.long), 4).item() == 0.0


def test_nmi_equals_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(5, (200,), generator=generator)
    second = (first + torch.randint(2, (200,), generator=generator)) % 7
    expected = normalized_mutual_info_score(first, second)
    assert normalized_mutual_information(first, second) == pytest.approx(expected)
    assert normalized_mutual_information(first, first * 2) == pytest.approx(1.0)


def test_stability_counts_the_pairs_that_flip():
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(4, (30,), generator=generator)
    after = torch.randint(6, (30,), generator=generator)
    pairs = (before[:, None] == before[None]) != (after[:, None] == after[None])
    assert stability(before, after) == pytest.approx(pairs.float().mean().item())
    assert stability(before, 3 - before) == 0.0
