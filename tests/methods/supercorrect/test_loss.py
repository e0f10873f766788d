"""Properties of the cross-model DPO loss."""

import math

import pytest
import torch

from ritornello.methods.supercorrect import cross_dpo_loss, sequence_logprob


@pytest.fixture
def logps(generator):
    return [torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(4)]


def test_loss_is_log_two_when_policy_equals_reference(logps):
    chosen, rejected, *_ = logps
    loss, first, second = cross_dpo_loss(chosen, rejected, chosen, rejected)
    torch.testing.assert_close(loss, torch.full_like(loss, math.log(2)))
    assert not first.any()
    assert not second.any()


def test_swapping_the_sides_flips_the_margin(logps):
    chosen, rejected, ref_chosen, ref_rejected = logps
    loss, a, b = cross_dpo_loss(chosen, rejected, ref_chosen, ref_rejected)
    swapped, c, d = cross_dpo_loss(rejected, chosen, ref_rejected, ref_chosen)
    torch.testing.assert_close(a - b, d - c)
    # -log sigmoid(z) and -log sigmoid(-z) differ by z.
    torch.testing.assert_close(swapped - loss, a - b)


def test_gradients_of_the_sides_are_opposite_and_rightly_signed(logps):
    chosen, rejected = (value.clone().requires_grad_() for value in logps[:2])
    cross_dpo_loss(chosen, rejected, *logps[2:])[0].sum().backward()
    torch.testing.assert_close(chosen.grad, -rejected.grad)
    assert (chosen.grad < 0).all()


def test_bad_input_is_named(logps):
    with pytest.raises(ValueError, match="beta"):
        cross_dpo_loss(*logps, beta=0.0)
    with pytest.raises(ValueError, match="shape"):
        cross_dpo_loss(logps[0][:3], *logps[1:])


def test_prompt_tokens_do_not_count(generator):
    logits = torch.randn(2, 5, 7, generator=generator)
    ids = torch.randint(7, (2, 5), generator=generator)
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 0]], dtype=torch.bool)
    before = sequence_logprob(logits, ids, mask)
    changed = logits.clone()
    changed[0, :2] += torch.randn(2, 7, generator=generator)  # predicts prompt tokens only
    torch.testing.assert_close(sequence_logprob(changed, ids, mask), before)
    by_hand = sum(logits[1, t - 1].log_softmax(-1)[ids[1, t]] for t in (2, 3))
    torch.testing.assert_close(before[1], by_hand)


def test_the_first_token_has_no_probability():
    with pytest.raises(ValueError, match="first token"):
        sequence_logprob(
            torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2).bool()
        )
    with pytest.raises(ValueError, match="agree"):
        sequence_logprob(
            torch.zeros(1, 3, 3), torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2).bool()
        )
