"""What the paper promises: unit scale in both passes, right directions, equal variance shares."""

import math

import pytest
import torch
import torch.nn.functional as F

from ritornello.methods.umup import SP, DecoderConfig, DecoderLM, MuP, UMuP
from ritornello.methods.umup import functional as U
from ritornello.methods.umup.functional.residual import transformer_residual_tau
from ritornello.methods.umup.track import ScaleTracker, coordinate_check, rms


def normal(*shape: int, seed: int = 0, dtype=torch.float32, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (U.linear, [(512, 256), (128, 256)]),
        (U.silu_glu, [(256, 256), (256, 256)]),
        (U.silu, [(256, 256)]),
        (U.gelu, [(256, 256)]),
        (U.add, [(256, 256), (256, 256)]),
        (U.matmul, [(256, 256), (256, 256)]),
        (U.softmax, [(256, 256)]),
        (lambda x, w: U.conv1d(x, w, padding=2), [(16, 64, 64), (64, 64, 5)]),
    ],
    ids=["linear", "silu_glu", "silu", "gelu", "add", "matmul", "softmax", "conv1d"],
)
def test_outputs_and_gradients_have_unit_scale(op, shapes):
    """With N(0, 1) inputs and upstream gradients every RMS lies near 1."""
    inputs = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    out = op(*inputs)
    assert 0.8 < rms(out) < 1.25
    gradients = torch.autograd.grad(out, inputs, normal(*out.shape, seed=9, grad=False))
    for gradient in gradients:
        assert 0.65 < rms(gradient) < 1.3


@pytest.mark.parametrize("tokens", [16, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_unit_scale(tokens, causal):
    query, key, value = (normal(4, 4, tokens, 64, seed=i) for i in range(3))
    out = U.scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert 0.85 < rms(out) < 1.2
    (gradient,) = torch.autograd.grad(out, value, normal(*out.shape, seed=9, grad=False))
    assert 0.85 < rms(gradient) < 1.25


def test_causal_attention_of_one_token_is_its_value():
    value = normal(1, 1, 1, 4)
    torch.testing.assert_close(
        U.scaled_dot_product_attention(value, value, value, is_causal=True), value
    )


PLAIN = {
    "linear": (U.linear, lambda x, w: F.linear(x, w), [(7, 5), (3, 5)]),
    "gelu": (U.gelu, F.gelu, [(7, 5)]),
    "silu": (U.silu, F.silu, [(7, 5)]),
    "silu_glu": (U.silu_glu, lambda x, g: x * F.silu(g), [(7, 5), (7, 5)]),
    "softmax": (U.softmax, lambda x: x.softmax(-1), [(7, 5)]),
    "matmul": (U.matmul, torch.matmul, [(4, 6), (6, 3)]),
    "conv1d": (U.conv1d, F.conv1d, [(2, 3, 9), (4, 3, 2)]),
    "layer_norm": (U.layer_norm, lambda x: F.layer_norm(x, (5,)), [(7, 5)]),
    "attention": (
        lambda q, k, v: U.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / 4),
        [(1, 2, 6, 4)] * 3,
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_point_where_the_plain_operator_s_do(name):
    """Cosine 1 with the unscaled operator's gradient under the default constraint."""
    scaled, plain, shapes = PLAIN[name]
    inputs = [normal(*shape, seed=i, dtype=torch.float64) for i, shape in enumerate(shapes)]
    upstream = normal(*plain(*inputs).shape, seed=9, dtype=torch.float64, grad=False)
    ours = torch.autograd.grad(scaled(*inputs), inputs, upstream)
    theirs = torch.autograd.grad(plain(*inputs), inputs, upstream)
    for our, their in zip(ours, theirs, strict=True):
        assert F.cosine_similarity(our.flatten(), their.flatten(), dim=0).item() == pytest.approx(1)


def test_second_derivatives_of_the_folded_operators_are_right():
    x, gate = normal(4, 3, dtype=torch.float64), normal(4, 3, seed=2, dtype=torch.float64)
    w = normal(2, 3, seed=1, dtype=torch.float64, grad=False)
    assert torch.autograd.gradgradcheck(lambda x: (U.linear(x, w) ** 2).sum(), (x,))
    assert torch.autograd.gradcheck(U.silu_glu, (x, gate))
    assert torch.autograd.gradgradcheck(U.silu_glu, (x, gate))


@pytest.mark.parametrize("ignored", [0, 3])
def test_loss_value_is_the_cross_entropy_and_its_gradient_has_unit_scale(ignored):
    logits = normal(64, 50)
    target = torch.arange(64) % 50
    target[:ignored] = -100
    loss = U.cross_entropy(logits, target)
    torch.testing.assert_close(loss, F.cross_entropy(logits, target))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[:ignored].abs().sum() == 0
    small = torch.zeros(64, 50, requires_grad=True)
    (at_uniform,) = torch.autograd.grad(U.cross_entropy(small, target.clamp_min(0)), small)
    assert rms(at_uniform) == pytest.approx(1, rel=1e-5)


def test_ignored_rows_count_only_when_asked():
    logits, target = normal(4, 5), torch.tensor([1, -100, 2, -100])
    mean = U.cross_entropy(logits, target)
    torch.testing.assert_close(U.cross_entropy(logits, target, count_ignored=True), mean / 2)


@pytest.mark.parametrize("branches", [2, 8, 24])
def test_embedding_attention_and_feed_forward_share_the_variance_equally(branches):
    shares = [1.0]
    for index in range(branches):
        tau = transformer_residual_tau(index, branches)
        shares = [share / (1 + tau**2) for share in shares] + [tau**2 / (1 + tau**2)]
    assert sum(shares) == pytest.approx(1)
    embedding, branch_shares = shares[0], shares[1:]
    assert branch_shares == pytest.approx([branch_shares[0]] * branches)
    assert sum(branch_shares[::2]) == pytest.approx(embedding)
    assert sum(branch_shares[1::2]) == pytest.approx(embedding)


def test_attention_ratio_sets_the_ratio_of_the_shares():
    first, second = (
        transformer_residual_tau(i, 2, residual_mult=0.5, attention_ratio=3.0) for i in (0, 1)
    )
    attention = first**2 / (1 + first**2) / (1 + second**2)
    feed_forward = second**2 / (1 + second**2)
    assert (attention / feed_forward) ** 0.5 == pytest.approx(3)


def test_residual_gradient_equals_autograd_of_the_weighted_sum():
    x, w = normal(5, 4, dtype=torch.float64), normal(4, 4, seed=1, dtype=torch.float64)
    upstream = normal(5, 4, seed=2, dtype=torch.float64, grad=False)
    tau = 0.7
    norm = (1 + tau**2) ** 0.5
    ours = torch.autograd.grad(U.residual_apply(lambda b: torch.tanh(b @ w), x, tau), x, upstream)
    plain = torch.tanh(x @ w) * tau / norm + x / norm
    torch.testing.assert_close(ours[0], torch.autograd.grad(plain, x, upstream)[0])


def lm(width: int, scheme=None, seed: int = 0) -> DecoderLM:
    config = DecoderConfig(64, width, 2, width // 16, hidden=2 * width)
    return DecoderLM(config, scheme, generator=torch.Generator().manual_seed(seed))


def ids() -> torch.Tensor:
    return torch.randint(64, (8, 33), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("width", [32, 256])
def test_every_gradient_and_activation_of_the_model_starts_near_one(width):
    model = lm(width)
    with ScaleTracker(
        model, lambda name, _: name.startswith("layers.") and name[-1].isdigit()
    ) as t:
        model.loss(ids()[:, :-1], ids()[:, 1:]).backward()
    for scale in t.scales():
        # Gradients of query and key are small by design (their multiplier is the values').
        if scale.kind != "gradient" and not any(part in scale.name for part in ("query", "key")):
            assert 0.45 < scale.rms < 2.2, scale


def test_first_update_moves_logits_alike_at_every_width_but_not_under_sp():
    def change(scheme, lr: float) -> dict[int, float]:
        def build(width: int):
            model = lm(width, scheme)
            return model, torch.optim.AdamW(scheme.param_groups(model, lr))

        x = ids()
        return coordinate_check(
            build, [64, 256], lambda m: m.loss(x[:, :-1], x[:, 1:]), lambda m: m(x[:, :-1])
        )

    ours, plain = change(UMuP(), 0.5), change(SP(), 2**-8)
    assert ours[256] / ours[64] == pytest.approx(1, abs=0.3)
    assert plain[256] / plain[64] > 1.25


def test_mup_equals_sp_s_rules_at_its_base_width():
    scheme = MuP(base_width=32, embedding_lr=3.0)
    model = lm(32, scheme)
    assert {group["lr"] for group in scheme.param_groups(model, 1.0)} == {1.0, 3.0}
    wide = scheme.param_groups(lm(128, scheme), 1.0, 0.1)
    assert {group["lr"] for group in wide} == {0.25, 1.0, 3.0}
    assert all(math.isclose(g["lr"] * g["weight_decay"], 0.1) for g in wide)
    assert lm(128, scheme).readout.multiplier == pytest.approx(0.25)


def test_depth_mup_scales_branches_and_rates_with_depth():
    scheme = MuP(base_width=32, base_depth=1)
    model = lm(32, scheme)
    hidden = model.layers[0].attention.query
    assert hidden.lr_scale == pytest.approx(0.5**0.5)
    x = normal(2, 3)
    torch.testing.assert_close(scheme.residual(lambda b: b, x, 0, 4), x * (1 + 0.5**0.5))
