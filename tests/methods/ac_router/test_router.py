"""The gate: golden parity, gradients, dependence on the previous assignment, running statistics."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ritornello.common.moe import EmbeddingRouter, RoutingState, SMoERouter, XMoERouter
from ritornello.common.moe.losses import balance_loss
from ritornello.methods.ac_router import ACRouter
from ritornello.methods.ac_router.baselines import SMoEDropoutRouter, StableMoERouter
from ritornello.methods.ac_router.weights import cluster_sums

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}  # of the golden README


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def values(golden: Path) -> dict[str, Tensor]:
    arrays = np.load(golden / "ac_router" / "gates.npz")
    return {name: torch.from_numpy(np.asarray(x)) for name, x in arrays.items()}


def previous_state(n: int, experts: int, seed: int = 0, top_k: int = 2) -> RoutingState:
    logits = torch.randn(n, experts, generator=torch.Generator().manual_seed(seed))
    kept, indices = logits.topk(top_k)
    return RoutingState(indices, kept.softmax(-1), logits)


def assert_same_choice(state: RoutingState, indices: Tensor, scores: Tensor) -> None:
    """Equal up to the order inside a row."""
    ours, theirs = state.indices.sort(-1), indices.sort(-1)
    assert torch.equal(ours.values, theirs.values)
    torch.testing.assert_close(
        state.scores.gather(-1, ours.indices), scores.gather(-1, theirs.indices), **TOLERANCE
    )


@pytest.mark.parametrize("case", ["a", "b"])
@pytest.mark.parametrize("name", ["lm_mad", "lm_mad_mix"])
def test_gate_equals_the_official_code(values, case, name):
    """Logits, choice, scores, rescaled embeddings and both gradients."""
    tokens = values[f"{case}_tokens"].clone().requires_grad_()
    experts = int(values[f"{case}_n_experts"])
    router = ACRouter(tokens.shape[1], experts, mix=name.endswith("mix"))
    router.gate.expert_embeddings.data = values[f"{case}_{name}_emb"].clone()
    previous = RoutingState(
        values[f"{case}_prev_idx"], values[f"{case}_prev_score"], torch.zeros(len(tokens), experts)
    )
    state = router(tokens, previous)
    torch.testing.assert_close(state.logits, values[f"{case}_{name}_logits"], **TOLERANCE)
    assert_same_choice(state, values[f"{case}_{name}_top_idx"], values[f"{case}_{name}_top_score"])
    embeddings = router.gate.expert_embeddings
    torch.testing.assert_close(embeddings.data, values[f"{case}_{name}_emb_after"], **TOLERANCE)
    (state.logits.softmax(-1) * values[f"{case}_{name}_v"]).sum().backward()
    torch.testing.assert_close(tokens.grad, values[f"{case}_{name}_grad_tokens"], **TOLERANCE)
    torch.testing.assert_close(embeddings.grad, values[f"{case}_{name}_grad_emb"], **TOLERANCE)


def test_baseline_gates_equal_the_official_code(values):
    x = values["base_x"]
    smoe = SMoERouter(12, 4, 2)
    smoe.projection.weight.data = values["base_smoe_w"]
    smoe.projection.bias.data = values["base_smoe_b"]
    xmoe = XMoERouter(12, 4, 2)
    xmoe.reduction.weight.data = values["base_xmoe_proj"]
    xmoe.expert_embeddings.data = values["base_xmoe_emb"].clone()
    for name, router in (("smoe", smoe), ("xmoe", xmoe)):
        state = router(x)
        torch.testing.assert_close(state.logits, values[f"base_{name}_logits"], **TOLERANCE)
        assert_same_choice(state, values[f"base_{name}_idx"], values[f"base_{name}_score"])
        loss = balance_loss(state, temperature=router.balance_temperature, per_slot=True)
        expected = values[f"base_{name}_balance"].float()
        torch.testing.assert_close(loss, expected, **TOLERANCE)


def test_equal_spread_makes_it_the_gate_with_unit_weights():
    block = torch.randn(12, 6)
    tokens = torch.cat([block, block + 4])
    previous = previous_state(24, 2)._replace(
        indices=torch.arange(2).repeat_interleave(12)[:, None]
    )
    router = ACRouter(6, 2, 1)
    scaled, plain = router(tokens, previous), router.gate(tokens)
    torch.testing.assert_close(scaled.logits, plain.logits, rtol=1e-3, atol=1e-4)


def test_logits_depend_on_the_previous_assignment_and_on_its_scores_only_when_mixing():
    tokens = torch.randn(50, 6)
    previous, other = previous_state(50, 4), previous_state(50, 4, seed=1)
    rescored = previous._replace(scores=previous.scores.flip(-1))
    for mix in (False, True):
        router = ACRouter(6, 4, mix=mix)
        logits = router(tokens, previous).logits
        assert not torch.allclose(logits, router(tokens, other).logits)
        again = router(tokens, rescored).logits
        assert torch.allclose(logits, again, atol=1e-5) is not mix


def test_mixed_weights_stay_fp32_under_autocast():
    tokens, previous, router = torch.randn(50, 6), previous_state(50, 4), ACRouter(6, 4, mix=True)
    with torch.autocast("cpu", torch.bfloat16):
        weights = router(tokens, previous).weights
    torch.testing.assert_close(weights, router(tokens, previous).weights)
    narrow = previous._replace(indices=previous.indices.int())
    torch.testing.assert_close(router(tokens, narrow).weights, weights)


def test_scores_are_two_positive_entries_that_sum_to_one():
    state = ACRouter(6, 4)(torch.randn(50, 6), prev=previous_state(50, 4))
    assert state.scores.shape == (50, 2)
    assert state.scores.gt(0).all()
    torch.testing.assert_close(state.scores.sum(-1), torch.ones(50))


def test_gradient_reaches_tokens_and_embeddings_but_not_through_the_weights():
    """The gradient is that of a gate with the weights as constants."""
    tokens = torch.randn(50, 6, requires_grad=True)
    router = ACRouter(6, 4)
    state = router(tokens, previous_state(50, 4))
    target = torch.randn(50, 4)
    (ours,) = torch.autograd.grad((state.logits * target).sum(), tokens)
    constant = router.gate(tokens * state.weights).logits
    (theirs,) = torch.autograd.grad((constant * target).sum(), tokens)
    torch.testing.assert_close(ours, theirs)
    assert not state.weights.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_tokens_go_through_the_gate_in_blocks_with_the_same_values(dtype):
    tokens = torch.randn(1100, 6).to(dtype).requires_grad_()
    router, target = ACRouter(6, 4), torch.randn(1100, 4).to(dtype)
    inputs = [tokens, router.gate.expert_embeddings]
    state = router(tokens, previous_state(1100, 4))
    ours = [state.logits, *torch.autograd.grad((state.logits * target).sum(), inputs)]
    logits = router.gate(tokens * state.weights.to(dtype)).logits
    whole = [logits, *torch.autograd.grad((logits * target).sum(), inputs)]
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else TOLERANCE
    for our, expected in zip(ours, whole, strict=True):
        torch.testing.assert_close(our, expected, **loose)


def test_no_tokens_are_routed_nowhere():
    router, tokens = ACRouter(6, 4), torch.zeros(2, 0, 6)
    previous = RoutingState(*(torch.zeros(2, 0, size) for size in (2, 2, 4)))
    previous = previous._replace(indices=previous.indices.long())
    assert router(tokens, previous).logits.shape == (2, 0, 4)


def test_batch_shape_does_not_matter():
    tokens, previous = torch.randn(30, 6), previous_state(30, 4)
    router = ACRouter(6, 4)
    shaped = RoutingState(*(x.unflatten(0, (5, 6)) for x in previous[:3]))
    state = router(tokens.view(5, 6, 6), shaped)
    torch.testing.assert_close(state.logits.view(30, 4), router(tokens, previous).logits)
    assert state.weights.shape == (5, 6, 6)


def test_without_a_previous_state_it_warns_once_or_raises():
    tokens = torch.randn(5, 6)
    router = ACRouter(6, 4)
    with pytest.warns(UserWarning, match="no previous routing state"):
        state = router(tokens)
    torch.testing.assert_close(state.logits, router(tokens).logits)
    assert state.weights is None
    with pytest.raises(ValueError, match="prev must be"):
        ACRouter(6, 4, strict=True)(tokens)


def test_strict_mode_names_bad_tokens_and_assignments():
    router = ACRouter(6, 4, strict=True)
    tokens, previous = torch.randn(5, 6), previous_state(5, 4)
    tokens[2, 3] = float("nan")
    with pytest.raises(ValueError, match="tokens must be finite"):
        router(tokens, previous)
    mask = torch.tensor([True, True, False, True, True])
    assert router(tokens, previous, mask).logits.isfinite().all()
    with pytest.raises(ValueError, match="assignment must lie in"):
        router(torch.randn(5, 6), previous._replace(indices=torch.full((5, 2), 4)))


def test_state_of_other_tokens_is_refused():
    with pytest.raises(ValueError, match=r"prev\.indices must be for the same tokens"):
        ACRouter(6, 4)(torch.randn(5, 6), previous_state(4, 4))


def test_running_statistics_after_one_batch_equal_that_batch():
    tokens, previous = torch.randn(80, 6), previous_state(80, 4)
    router = ACRouter(6, 4, statistics="running")
    batch = router.train()(tokens, previous)
    frozen = router.eval()(tokens, previous)
    torch.testing.assert_close(frozen.logits, batch.logits, rtol=1e-4, atol=1e-5)


def test_running_statistics_average_towards_new_batches():
    router = ACRouter(6, 4, statistics="running", decay=0.5).train()
    previous = previous_state(80, 4)
    for _ in range(20):
        router(torch.randn(80, 6), previous)
    tokens = torch.randn(80, 6) * torch.tensor([5.0, 1, 1, 1, 1, 1])
    for _ in range(20):
        router(tokens, previous)
    batch = router(tokens, previous).logits
    torch.testing.assert_close(router.eval()(tokens, previous).logits, batch, rtol=1e-3, atol=1e-3)


def test_frozen_statistics_make_routing_of_a_token_independent_of_the_rest():
    router = ACRouter(6, 4, statistics="running")
    router.train()(torch.randn(80, 6), previous_state(80, 4))
    router.eval()
    tokens, previous = torch.randn(10, 6), previous_state(10, 4)
    alone = RoutingState(*(x[:3] for x in previous[:3]))
    whole, part = router(tokens, previous), router(tokens[:3], alone)
    torch.testing.assert_close(whole.logits[:3], part.logits)
    batchwise = ACRouter(6, 4)
    whole, part = batchwise(tokens, previous), batchwise(tokens[:3], alone)
    assert not torch.allclose(whole.logits[:3], part.logits)


def test_running_statistics_in_training_use_the_averages():
    router = ACRouter(6, 4, statistics="running", running_in_training=True).train()
    previous = previous_state(80, 4)
    first, second = torch.randn(80, 6), torch.randn(80, 6)
    router(first, previous)
    trained = router(second, previous).logits
    torch.testing.assert_close(router.eval()(second, previous).logits, trained)


def test_running_statistics_travel_with_the_state_dict():
    router = ACRouter(6, 4, statistics="running").train()
    router(torch.randn(80, 6), previous_state(80, 4))
    copy = ACRouter(6, 4, statistics="running")
    copy.load_state_dict(router.state_dict())
    tokens, previous = torch.randn(9, 6), previous_state(9, 4)
    assert torch.equal(router.eval()(tokens, previous).logits, copy.eval()(tokens, previous).logits)


def test_stablemoe_is_the_unit_embedding_gate_without_rescaling():
    stable, unit = StableMoERouter(6, 4), EmbeddingRouter(6, 4)
    unit.expert_embeddings.data = stable.expert_embeddings.data.clone()
    before = stable.expert_embeddings.data.clone()
    x = torch.randn(7, 6)
    torch.testing.assert_close(stable(x).logits, unit(x).logits)
    assert torch.equal(stable.expert_embeddings.data, before)


def test_smoe_dropout_grows_k_and_never_trains_its_gate():
    router = SMoEDropoutRouter(6, 8, 2)
    assert not any(p.requires_grad for p in router.parameters())
    widths = []
    for fraction in (0.0, 0.5, 1.0):
        router.set_progress(fraction)
        widths.append(router(torch.randn(3, 6)).indices.shape[-1])
    assert widths == [2, 5, 8]
    copy = SMoEDropoutRouter(6, 8, 2)
    copy.load_state_dict(router.state_dict())
    assert copy.top_k == 8
    with pytest.raises(ValueError, match="fraction must be in"):
        router.set_progress(1.5)
    with pytest.raises(ValueError, match="final_top_k"):
        SMoEDropoutRouter(6, 8, 2, final_top_k=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": "epoch"}, "statistics must be"),
        ({"decay": 1.0}, "decay must be"),
        ({"running_in_training": True}, "running_in_training needs"),
        ({"eps": -1.0}, "eps must be positive"),
        ({"top_k": 5}, "top_k must be in"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ACRouter(6, 4, **options)


def sums_of_half(rank):
    tokens = torch.randn(60, 6, generator=torch.Generator().manual_seed(3))
    assignment = torch.arange(60) % 4
    half = slice(0, 20) if rank == 0 else slice(20, 60)
    sums = cluster_sums(tokens[half], assignment[half], 4, sync=True)
    return [x.tolist() for x in sums]


def test_two_processes_share_their_statistics(two_ranks):
    """Counts, means and deviations are those of the whole batch, however it is split."""
    tokens = torch.randn(60, 6, generator=torch.Generator().manual_seed(3))
    whole = cluster_sums(tokens, torch.arange(60) % 4, 4)
    for answer in two_ranks(sums_of_half):
        count, deviation = (torch.tensor(x) for x in answer)
        torch.testing.assert_close(count, whole.count)
        torch.testing.assert_close(deviation, whole.deviation)
