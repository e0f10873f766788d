"""What the paper's loss and encoder promise."""

import copy
import math

import pytest
import torch
from torch import nn

from ritornello.methods.comm import (
    CLIPLoss,
    CMCLoss,
    CoMM,
    CoMMLoss,
    CrossModal,
    CrossSelf,
    FactorCL,
    FactorCLLoss,
    FeaturesInputAdapter,
    FineTuned,
    FusionTransformer,
    MultimodalEncoder,
    SimpleFeaturesInputAdapter,
    SupCon,
    Supervised,
    interaction_report,
    nt_xent,
    reference,
    supcon_loss,
)
from ritornello.methods.comm.attention import MultiHeadAttention, ResidualAttentionBlock
from ritornello.methods.comm.factorcl import PairCritic, club_bound, infonce_bound
from ritornello.methods.comm.loss import _blocks
from ritornello.methods.comm.model import extract_features, per_batch, projection_head


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def padded_modalities(width=16):
    tokens = [random(4, 3, width), random(4, 5, width, seed=1), random(4, 1, width, seed=2)]
    padding = [torch.zeros(t.shape[:2], dtype=torch.bool) for t in tokens]
    padding[1][0, 2:] = True
    padding[1][2, 4:] = True
    return tokens, padding


SUBSETS = [[True, False, False], [False, True, False], [True, False, True], [True, True, True]]


@pytest.mark.parametrize("temperature", [0.001, 0.02, 0.03, 0.2, 5.0])
@pytest.mark.parametrize(("n", "dim"), [(1, 3), (2, 2), (7, 5), (33, 16)])
def test_nt_xent_equals_the_matrix_written_out(n, dim, temperature):
    a, b = random(n, dim).requires_grad_(), random(n, dim, seed=1).requires_grad_()
    ours, theirs = (f(a, b, temperature) for f in (nt_xent, reference.nt_xent_matrix))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 / temperature)
    for mine, expected in zip(
        torch.autograd.grad(ours, (a, b)), torch.autograd.grad(theirs, (a, b)), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6 / temperature)


def test_opposite_and_equal_samples_have_finite_gradients_at_any_temperature():
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    for temperature in (1e-4, 0.01, 0.0254, 0.0256, 0.1):
        loss = nt_xent(z, -z.detach(), temperature)
        assert bool(torch.isfinite(loss))
        assert bool(torch.isfinite(torch.autograd.grad(loss, z)[0]).all())


def test_one_query_pools_as_attention_does():
    """The class token's way past keys and values gives what they give, for gradients too."""
    attention = MultiHeadAttention(8, 2)
    for place, parameter in enumerate(attention.parameters()):
        parameter.data = random(*parameter.shape, seed=place) / 3
    x = random(1, 3, 1, 8).requires_grad_()
    context = random(1, 3, 5, 8, seed=1).requires_grad_()
    hidden = torch.rand(4, 3, 1, 1, 5, generator=torch.Generator().manual_seed(2)) < 0.4
    hidden[..., 0] = False
    pooled = attention.pool(x, context, hidden)
    usual = attention(attention.queries(x), *attention.keys_values(context), hidden)
    torch.testing.assert_close(pooled, usual, rtol=1e-5, atol=1e-6)
    wanted = (x, context, attention.in_proj_weight, attention.in_proj_bias)
    for mine, expected in zip(
        torch.autograd.grad(pooled.square().sum(), wanted),
        torch.autograd.grad(usual.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_sums_by_blocks_equal_those_at_once(monkeypatch):
    a, b = random(9, 4).requires_grad_(), random(9, 4, seed=1).requires_grad_()
    whole = torch.autograd.grad(nt_xent(a, b), (a, b))
    monkeypatch.setattr(_blocks, "__defaults__", (60,))
    assert _blocks(18)[-1] == slice(15, 18)
    pieces = torch.autograd.grad(nt_xent(a, b), (a, b))
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_loss_equals_the_sum_written_out(k):
    views = [[random(6, 8, seed=10 * v + i).requires_grad_() for i in range(k)] for v in (0, 1)]
    ours, theirs = CoMMLoss()(*views).loss, reference.comm_loss(*views)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    everything = [*views[0], *views[1]]
    for mine, expected in zip(
        torch.autograd.grad(ours, everything), torch.autograd.grad(theirs, everything), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


def test_nt_xent_is_symmetric_and_zero_for_one_sample():
    a, b = random(9, 4), random(9, 4, seed=1)
    torch.testing.assert_close(nt_xent(a, b), nt_xent(b, a))
    assert nt_xent(a[:1], b[:1]).item() == pytest.approx(0, abs=1e-6)


def test_loss_ignores_rotation_scale_and_order():
    views = [[random(7, 6, seed=10 * v + i) for i in range(3)] for v in (0, 1)]
    expected = CoMMLoss()(*views).loss
    turn, _ = torch.linalg.qr(random(6, 6, seed=5))
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    for change in (lambda z: z @ turn, lambda z: z * 3.7, lambda z: z[order]):
        changed = CoMMLoss()(*[[change(z) for z in view] for view in views]).loss
        torch.testing.assert_close(changed, expected, rtol=1e-5, atol=1e-5)


def test_identical_views_of_orthogonal_samples():
    n, temperature = 6, 0.3
    z = torch.eye(n)
    expected = math.log(1 + (2 * n - 2) * math.exp(-1 / temperature))
    assert nt_xent(z, z, temperature).item() == pytest.approx(expected, rel=1e-5)


def test_half_precision_gets_float_logits():
    a, b = random(16, 32), random(16, 32, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = nt_xent(a, b)
        term = CoMMLoss()([a, b], [b, a]).loss
    assert mixed.dtype == term.dtype == torch.float32
    torch.testing.assert_close(mixed, nt_xent(a, b))


def test_double_precision_stays_double():
    a, b = (random(4, 3, seed=s).double().requires_grad_() for s in (0, 1))
    assert torch.autograd.gradcheck(nt_xent, (a, b))
    assert torch.autograd.gradcheck(lambda x, y: CoMMLoss()([x, y], [y, x]).loss, (a, b))


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize(("layers", "bias_kv"), [(1, False), (1, True), (3, False)])
def test_all_subsets_at_once_equal_one_pass_each(pool, layers, bias_kv):
    """Hidden tokens are as if they were not there, for values and gradients."""
    torch.manual_seed(0)
    fusion = FusionTransformer(16, 4, layers, pool=pool, add_bias_kv=bias_kv)
    tokens, padding = padded_modalities()
    for t in tokens:
        t.requires_grad_()
    together = fusion.subsets(tokens, SUBSETS, padding)
    for subset, fused in zip(SUBSETS, together, strict=True):
        chosen = [m for m, used in enumerate(subset) if used]
        alone = reference.fuse_one_subset(
            fusion, [tokens[m] for m in chosen], [padding[m] for m in chosen]
        )
        torch.testing.assert_close(fused, alone, rtol=1e-5, atol=1e-6)
        weights = random(*fused.shape, seed=7)
        inputs = [tokens[m] for m in chosen]
        mine = torch.autograd.grad((fused * weights).sum(), inputs, retain_graph=True)
        theirs = torch.autograd.grad((alone * weights).sum(), inputs)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"fusion": "x-attn", "pool": "mean", "n_modalities": 3}])
def test_a_subset_ignores_the_other_modalities_entirely(options):
    fusion = FusionTransformer(16, 4, 2, **options)
    tokens, padding = padded_modalities()
    tokens[1].requires_grad_()
    (gradient,) = torch.autograd.grad(
        fusion.subsets(tokens, [[True, False, True]], padding).sum(), tokens[1], allow_unused=True
    )
    assert gradient is None or not gradient.any()
    wild = [tokens[0], tokens[1].detach() * 1e3, tokens[2]]
    before = fusion.subsets(tokens, [[True, False, True]], padding)
    assert torch.equal(before, fusion.subsets(wild, [[True, False, True]], padding))


def test_attention_between_modalities_trains_all_of_its_blocks():
    fusion = FusionTransformer(16, 4, 1, fusion="x-attn", pool="mean", n_modalities=3)
    tokens, padding = padded_modalities()
    fusion(tokens, padding).sum().backward()
    assert all(p.grad is not None for p in fusion.parameters())


def test_the_order_of_tokens_without_positions_does_not_matter():
    fusion = FusionTransformer(16, 4, 2)
    tokens, _ = padded_modalities()
    shuffled = [tokens[0].flip(1), *tokens[1:]]
    torch.testing.assert_close(fusion(tokens), fusion(shuffled), rtol=1e-5, atol=1e-6)


def small_encoder(width=16):
    return MultimodalEncoder(
        [nn.Linear(6, 8), nn.Linear(4, 2 * width)],
        [FeaturesInputAdapter(8, width), SimpleFeaturesInputAdapter(2)],
        FusionTransformer(width, 4),
    )


def test_missing_modalities_are_as_a_subset():
    torch.manual_seed(0)
    encoder, inputs = small_encoder(), [random(3, 6), random(3, 4)]
    for m, alone in enumerate(encoder(inputs, [[True, False], [False, True]])):
        given = [x if i == m else None for i, x in enumerate(inputs)]
        torch.testing.assert_close(encoder(given), alone)


def test_text_masks_reach_the_fusion_unless_told_otherwise():
    class Text(nn.Module):
        def forward(self, x):
            return {"token_embeddings": x, "attention_mask": x[..., 0] == 9}

    torch.manual_seed(0)
    text = random(2, 5, 16)
    text[0, 3:, 0] = 9
    parts = [nn.Linear(6, 16), Text()], [SimpleFeaturesInputAdapter(), None]
    encoder = MultimodalEncoder(*parts, FusionTransformer(16, 4))
    inputs, both = [random(2, 6), text], [[True, True]]
    changed = text.clone()
    changed[0, 3:, 1:] += 1
    assert torch.equal(encoder(inputs, both)[0], encoder([inputs[0], changed], both)[0])
    encoder.legacy_ignore_padding = True
    assert not torch.equal(encoder(inputs, both)[0], encoder([inputs[0], changed], both)[0])
    assert torch.equal(encoder(inputs), encoder([inputs[0], changed]))


def test_views_of_one_batch_are_fused_as_they_are_alone():
    torch.manual_seed(0)
    encoder = small_encoder()
    views = [[random(3, 6, seed=s), random(3, 4, seed=s + 1)] for s in (0, 5)]
    subsets = [[True, False], [True, True]]
    joint = encoder.embed_views(views, subsets)
    for view, fused in zip(views, joint, strict=True):
        torch.testing.assert_close(fused, torch.stack(encoder(view, subsets)))


def test_the_head_normalises_each_subset_apart():
    """Batch statistics are those of one view and one subset, as in separate passes."""
    torch.manual_seed(0)
    model = CoMM(small_encoder(), projection_head(16, 8, 8))
    views = [[random(5, 6, seed=s), random(5, 4, seed=s + 1)] for s in (0, 5)]
    loss = model(*views).loss
    subsets = [[True, False], [False, True], [True, True]]
    one = [[model.head(z) for z in model.encoder(view, subsets)] for view in views]
    torch.testing.assert_close(loss, reference.comm_loss(*one), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_head_of_several_batches_leaves_the_statistics_of_one_after_another(momentum):
    torch.manual_seed(0)
    joint = projection_head(6, 8, 4)
    for layer in joint:
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = momentum
            nn.init.uniform_(layer.weight)
    alone, batches = copy.deepcopy(joint), random(4, 5, 6).requires_grad_()
    for training in (True, False):
        joint.train(training), alone.train(training)
        ours = torch.stack(list(per_batch(joint, batches)))
        theirs = torch.stack([alone(batch) for batch in batches])
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        found, wanted = (
            torch.autograd.grad(out.square().sum(), [batches, *head.parameters()])
            for out, head in ((ours, joint), (theirs, alone))
        )
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(joint.state_dict(), alone.state_dict(), rtol=1e-5, atol=1e-6)


def test_three_modalities_train_and_report():
    torch.manual_seed(0)
    encoder = MultimodalEncoder(
        [nn.Linear(4, 16) for _ in range(3)],
        [SimpleFeaturesInputAdapter() for _ in range(3)],
        FusionTransformer(16, 4),
    )
    model = CoMM(encoder, projection_head(16, 16, 8))
    x = [random(80, 4, seed=s) for s in range(3)]
    labels = (x[0][:, 0] > 0).long()
    output = model(x, [v + 0.1 for v in x])
    assert output.per_term.shape == (4,)
    output.loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    report = interaction_report(
        model, x, x, {"sign": (labels, labels)}, costs=[1.0], standardize=True
    )["sign"]
    assert set(report) == {"modality 0", "modality 1", "modality 2", "all"}
    assert report["modality 0"] > 80 > max(report["modality 1"], report["modality 2"])
    assert model.training


def identity(inputs):
    return [x + 0.01 for x in inputs]


def baseline(name):
    encoders = [nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(4, 8)]
    if name == "supervised":
        return Supervised(small_encoder(), 3)
    if name == "fine_tuned":
        return FineTuned(small_encoder())
    if name.startswith("factorcl"):
        task = 3 if name == "factorcl_sup" else None
        return FactorCL(encoders, [8, 8], embed_dim=4, critic_hidden=8, task_dim=task)
    kind = {"cross": CrossModal, "cross_self": CrossSelf, "supcon": SupCon}[name]
    return kind(encoders, [8, 8])


@pytest.mark.parametrize(
    "name",
    ["cross", "cross_self", "supcon", "factorcl", "factorcl_sup", "supervised", "fine_tuned"],
)
def test_baselines_train_every_parameter(name):
    torch.manual_seed(0)
    model, inputs = baseline(name), [random(6, 6), random(6, 4)]
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    output = model.training_loss(inputs, identity, labels)
    output.loss.backward()
    unused = [n for n, p in model.named_parameters() if p.grad is None]
    assert not unused
    for features in model.features(inputs).values():
        assert features.shape[0] == 6


@pytest.mark.parametrize("labels", [random(6, 3), (random(6, 3) > 0).long()])
def test_fine_tuning_on_columns_reads_them_off_the_embedding(labels):
    torch.manual_seed(0)
    model, inputs = FineTuned(small_encoder(), columns=3), [random(6, 6), random(6, 4)]
    first = model.training_loss(inputs, identity, labels)
    flat = math.log(2) if labels.dtype == torch.long else labels.square().mean().item()
    assert first.loss.item() == pytest.approx(flat, rel=1e-5)  # the readout starts at zero
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(30):
        optimizer.zero_grad()
        output = model.training_loss(inputs, identity, labels)
        output.loss.backward()
        optimizer.step()
    assert output.loss.item() < 0.7 * flat


@pytest.mark.parametrize("name", ["supcon", "factorcl_sup", "supervised", "fine_tuned"])
def test_supervised_baselines_ask_for_labels(name):
    with pytest.raises(ValueError, match="labels"):
        baseline(name).training_loss([random(6, 6), random(6, 4)], identity)


def test_critic_scores_every_pair():
    torch.manual_seed(0)
    critic = PairCritic(3, 2, hidden=5)
    x, y = random(4, 3), random(4, 2, seed=1)
    scores = critic(x, y)
    for j in range(4):
        for i in range(4):
            single = critic(x[i : i + 1], y[j : j + 1])
            torch.testing.assert_close(scores[j, i], single[0, 0])
    assert infonce_bound(torch.zeros(4, 4)).item() == pytest.approx(0, abs=1e-6)
    assert club_bound(2 * torch.eye(4)).item() == pytest.approx(1.5)


def test_upper_bounds_do_not_train_their_critics_but_their_projections():
    torch.manual_seed(0)
    model = baseline("factorcl")
    inputs = [random(6, 6), random(6, 4)]
    output = model.training_loss(inputs, identity)
    place = output.names.index("shared_upper")
    critic = list(model.loss.critics["shared_upper"].parameters())
    projection = list(model.loss.projections[0]["shared_upper"].parameters())
    grads = torch.autograd.grad(output.per_term[place], critic + projection, allow_unused=True)
    assert all(g is None for g in grads[: len(critic)])
    assert all(g is not None for g in grads[len(critic) :])


class DotCritic(nn.Module):
    def forward(self, x, y):
        return y @ x.T


def test_factorcl_with_labels_by_hand():
    """Embeddings and one-hot classes are unit vectors, critics inner products: scores I or 2I."""
    loss = FactorCLLoss([2, 2], 2, 4, task_dim=2)
    for projections in loss.projections:
        for name in projections:
            projections[name] = nn.Identity()
    for name in loss.critics:
        loss.critics[name] = DotCritic()
    found = loss([torch.eye(2)] * 2, task=torch.eye(2))
    one, two = (k - math.log(math.exp(k) + 1) + math.log(2) for k in (1, 2))
    assert found.names == (
        "shared", "shared_upper", "conditional", "conditional_upper", "own_0", "own_1"
    )  # fmt: skip
    assert found.per_term.tolist() == pytest.approx([-one, 0.5, -two, 1.0, -one, -one])
    assert found.loss.item() == pytest.approx(1.5 - 4 * one - 2 * two)


def test_factorcl_with_labels_takes_classes_labels_and_targets():
    torch.manual_seed(0)
    model, inputs = baseline("factorcl_sup"), [random(4, 6), random(4, 4)]
    classes = torch.tensor([0, 2, 1, 2])
    columns = torch.eye(3)[classes]
    losses = [model.training_loss(inputs, identity, y).loss for y in (classes, columns.long())]
    torch.testing.assert_close(*losses)
    assert model.training_loss(inputs, identity, columns * 0.5).loss != losses[0]


def test_supcon_without_repeated_labels_is_nt_xent():
    a, b = random(5, 4), random(5, 4, seed=1)
    found = supcon_loss(torch.stack([a, b], dim=1), torch.arange(5), 0.1)
    torch.testing.assert_close(found, nt_xent(a, b, 0.1), rtol=1e-5, atol=1e-5)


def test_clip_uses_negatives_of_the_other_modality_only():
    a = torch.eye(3)
    loss = CLIPLoss(0.5)(a, a).loss
    assert loss.item() == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: nt_xent(random(3, 2), random(4, 2)), "z1 and z2"),
        (lambda: nt_xent(random(3, 2), random(3, 2), 0.0), "temperature"),
        (lambda: CoMMLoss(-1.0), "temperature"),
        (lambda: CoMMLoss()([random(3, 2)], [random(3, 2)]), "views1"),
        (lambda: CoMMLoss(weights=[1.0])([random(3, 2)] * 2, [random(3, 2)] * 2), "weights"),
        (lambda: CMCLoss()([random(3, 2)]), "embeddings"),
        (lambda: FusionTransformer(10, 4), "n_heads"),
        (lambda: FusionTransformer(8, 4, fusion="sum"), "fusion"),
        (lambda: FusionTransformer(8, 4, fusion="x-attn"), "pool"),
        (lambda: FusionTransformer(8, 4)([]), "tokens"),
        (lambda: FusionTransformer(8, 4)([random(2, 3, 7)]), "width"),
        (
            lambda: FusionTransformer(8, 4)([random(2, 3, 8)], [torch.zeros(2, 3)]),
            "key_padding_mask",
        ),
        (lambda: small_encoder()([None, None]), "missing"),
        (lambda: small_encoder()([random(2, 6)]), "inputs"),
        (lambda: small_encoder()([random(2, 6), None], [[True, True]]), "subset"),
        (lambda: small_encoder()([random(2, 6), random(3, 4)]), "one size"),
        (lambda: CoMM(small_encoder())([random(1, 6), random(1, 4)], [random(1, 6), random(1, 4)]),
         "at least 2"),
        (lambda: FactorCLLoss([4, 4, 4]), "2 modalities"),
        (lambda: FactorCLLoss([4, 4], 3, 5)([random(2, 4)] * 2, [random(3, 4)] * 2), "augmented"),
        (lambda: FactorCLLoss([4, 4], 3, 5, task_dim=2)([random(2, 4)] * 2), "task"),
        (lambda: FactorCLLoss([4, 4], 3, 5)([random(2, 4), random(3, 4)]), "embeddings"),
        (lambda: FeaturesInputAdapter(3, 4)(random(2, 5)), r"\(batch, 3\)"),
        (lambda: SimpleFeaturesInputAdapter(3)(random(2, 5)), "multiple of 3"),
        (lambda: extract_features(lambda x: x, [None]), "missing"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_the_training_loss_compiles():
    torch.manual_seed(0)
    fusion = FusionTransformer(16, 4)
    tokens, padding = padded_modalities()
    compiled = torch.compile(fusion.subsets, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(tokens, SUBSETS, padding), fusion.subsets(tokens, SUBSETS, padding)
    )


def test_blocks_are_called_as_modules(generator):
    """Training with divided parameters gathers a block's in hooks of its call."""
    calls = []
    for kind, pool in (("concat", "cls"), ("x-attn", "mean")):
        fusion = FusionTransformer(16, 4, n_layers=2, fusion=kind, pool=pool)
        blocks = [m for m in fusion.modules() if isinstance(m, ResidualAttentionBlock)]
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: calls.append(0))
        fusion([torch.randn(2, 3, 16, generator=generator) for _ in range(2)])
        assert len(calls) == len(blocks)
        calls.clear()
