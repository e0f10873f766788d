"""Language model, soft and vision models built with the router."""

from functools import partial

import pytest
import torch

from ritornello.common.moe import SMoERouter
from ritornello.methods.ac_router import (
    ACRouter,
    ACSoftMoE,
    MoELanguageModel,
    soft_moe_vit,
    swin_moe,
)
from ritornello.methods.ac_router.language_model import SpanAttention


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def small_lm(pattern: str = "sgsgsc", **options) -> MoELanguageModel:
    sizes = {"d_model": 16, "hidden": 16, "num_heads": 2, "num_experts": 4, "span": 6}
    adaptive = partial(ACRouter, statistics="running")
    return MoELanguageModel(20, pattern, SMoERouter, adaptive, **(sizes | options))


def test_span_attention_equals_a_loop_over_positions():
    attention = SpanAttention(8, 2)
    hidden, cache, positions = torch.randn(1, 5, 8), torch.randn(1, 3, 8), torch.randn(4, 3)
    out = attention(hidden, cache, positions)
    context = torch.cat([cache, hidden], 1)[0]
    query = attention.query(hidden)[0].view(5, 2, 4)
    key, value = (x.view(8, 2, 4) for x in attention.key_value(context).chunk(2, -1))
    for i in range(5):
        mixed = []
        for head in range(2):
            q = query[i, head]
            window = slice(i, i + 3)  # context positions before position i of the segment
            scores = (key[window, head] @ q + positions.t() @ q) / 2  # sqrt(4)
            mixed.append(scores.softmax(0) @ value[window, head])
        torch.testing.assert_close(out[0, i], attention.out(torch.cat(mixed)), rtol=1e-4, atol=1e-5)


def test_two_segments_with_the_cache_equal_one_long_segment():
    """Routing depends on the batch, so the routers' statistics are frozen first."""
    model = small_lm()
    model.train()(torch.randint(20, (4, 12)))
    model.eval()
    tokens = torch.randint(20, (2, 12))
    whole = model(tokens)
    first = model(tokens[:, :6])
    second = model(tokens[:, 6:], first.cache)
    torch.testing.assert_close(whole.logits[:, 6:], second.logits, rtol=1e-4, atol=1e-5)


def test_later_tokens_do_not_change_earlier_ones_with_frozen_statistics_but_do_with_batch_ones():
    tokens = torch.randint(20, (2, 10))
    changed = tokens.clone()
    changed[:, 7:] = (tokens[:, 7:] + 1) % 20
    frozen = small_lm().train()
    frozen(tokens)
    frozen.eval()
    torch.testing.assert_close(frozen(tokens).logits[:, :7], frozen(changed).logits[:, :7])
    batch = small_lm(dropout=0.0).train()  # batch statistics see the whole segment
    assert not torch.equal(batch(tokens).logits[:, :7], batch(changed).logits[:, :7])


def test_every_parameter_of_a_glam_pattern_is_trained():
    model = small_lm("sgsfsgsfscsf")
    output = model(torch.randint(20, (2, 8)))
    assert len(output.states) == 3
    assert [s.weights is not None for s in output.states] == [False, False, True]
    output.logits.square().mean().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == []


def test_padding_does_not_enter_the_statistics():
    model = small_lm(dropout=0.0)
    tokens = torch.randint(20, (2, 8))
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[:, 6:] = False
    changed = tokens.clone()
    changed[:, 6:] = (tokens[:, 6:] + 3) % 20
    first, second = (model(x, token_mask=mask).logits[:, :6] for x in (tokens, changed))
    torch.testing.assert_close(first, second)


def test_patterns_are_checked():
    with pytest.raises(ValueError, match="pattern must be letters"):
        small_lm("sx")
    with pytest.raises(ValueError, match="ordinary MoE 'g' before"):
        small_lm("scsg")
    with pytest.raises(ValueError, match="adaptive_gate must be given"):
        MoELanguageModel(20, "sgsc", SMoERouter, d_model=16, num_experts=4)
    with pytest.raises(ValueError, match="multiple of num_heads"):
        small_lm(num_heads=3)


def soft_reference(layer: ACSoftMoE, x: torch.Tensor) -> torch.Tensor:
    """Soft MoE token by token (Puigcerver et al., algorithm 1), without adaptive weights."""
    x = torch.nn.functional.normalize(x, dim=-1)
    phi = layer.scale * torch.nn.functional.normalize(layer.phi, dim=0)
    logits = x @ phi
    outputs = []
    for image, scores in zip(x, logits, strict=True):
        slots = scores.softmax(0).t() @ image
        experts = layer.experts
        processed = []
        for number, slot in enumerate(slots):
            k = number // layer.slots
            hidden = torch.nn.functional.gelu(slot @ experts.weight_in[k] + experts.bias_in[k])
            processed.append(hidden @ experts.weight_out[k] + experts.bias_out[k])
        outputs.append(scores.softmax(1) @ torch.stack(processed))
    return torch.stack(outputs)


@pytest.mark.parametrize("slots", [1, 3])
def test_soft_moe_without_previous_state_equals_algorithm_1(slots):
    layer = ACSoftMoE(6, 4, slots, hidden=8, top_k=2)
    x = torch.randn(2, 9, 6)
    y, state = layer(x)
    torch.testing.assert_close(y, soft_reference(layer, x), rtol=1e-4, atol=1e-5)
    assert state.indices.max() < 4
    assert state.weights is None


def test_soft_moe_scales_its_input_with_mixed_weights_of_the_recipe():
    layer = ACSoftMoE(6, 4, hidden=8, top_k=3)
    x = torch.randn(2, 9, 6)
    _, previous = layer(x)
    y, state = layer(x, previous)
    from ritornello.methods.ac_router.weights import adaptive_weights, token_weights

    tokens = torch.nn.functional.normalize(x, dim=-1).view(-1, 6)
    indices, scores = previous.indices.view(-1, 3), previous.scores.view(-1, 3)
    weights = adaptive_weights(tokens, indices, 4, eps=0.35, clip=5.0, scale="global_postclip")
    torch.testing.assert_close(state.weights.view(-1, 6), token_weights(weights, indices, scores))
    assert not torch.allclose(y, layer(x)[0])


def test_soft_moe_ignores_masked_tokens():
    layer = ACSoftMoE(6, 4, hidden=8, top_k=2)
    x = torch.randn(1, 9, 6)
    mask = torch.arange(9).lt(6).unsqueeze(0)
    changed = x.clone()
    changed[:, 6:] = torch.randn(1, 3, 6)
    torch.testing.assert_close(layer(x, None, mask)[0][:, :6], layer(changed, None, mask)[0][:, :6])


def test_soft_moe_hands_on_all_slots_where_there_are_fewer_than_eight():
    _, state = ACSoftMoE(dim=6, experts=4, slots=1, hidden=8)(torch.randn(1, 5, 6))
    assert state.indices.shape == (1, 5, 4)


def test_soft_moe_bad_input_is_named():
    with pytest.raises(ValueError, match="top_k must be in"):
        ACSoftMoE(6, 4, top_k=8)
    with pytest.raises(ValueError, match="slots must be"):
        ACSoftMoE(6, 8, 0)
    with pytest.raises(ValueError, match="tokens must be"):
        ACSoftMoE(6, 8)(torch.randn(9, 6))


def tiny_swin(**options):
    sizes = {"img_size": 16, "patch_size": 2, "in_chans": 1, "num_classes": 5, "embed_dim": 8}
    shape = {"depths": (2, 6), "num_heads": (2, 4), "window_size": 4, "num_experts": 4}
    return swin_moe(**(sizes | shape | options))


def test_swin_places_the_router_as_the_paper_does():
    """Odd blocks; the first of a stage is ordinary; assignments do not cross stages."""
    model = tiny_swin()
    images = torch.randn(3, 1, 16, 16)
    assert model(images).shape == (3, 5)
    adaptive = [state.weights is not None for state in model.states]
    assert adaptive == [False, False, True, True]  # block 1 | blocks 1, 3, 5
    names = [n for n, m in model.named_modules() if isinstance(m, ACRouter)]
    assert [n.split(".")[2:5] for n in names] == [["1", "blocks", "3"], ["1", "blocks", "5"]]
    (model(images).sum() + model.balance_loss()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_swin_small_has_nine_adaptive_ordinary_or_dense_blocks_where_the_paper_has_them():
    with torch.device("meta"):
        model = swin_moe()
    places = {
        n.removesuffix(".layer.router") for n, m in model.named_modules() if isinstance(m, ACRouter)
    }
    assert places == {f"backbone.layers.2.blocks.{b}.mlp" for b in range(3, 18, 2)}
    ordinary = {
        n
        for n, m in model.named_modules()
        if isinstance(m, SMoERouter) and n.endswith(".layer.router")
    }
    assert {n.split(".mlp")[0] for n in ordinary} == {
        "backbone.layers.2.blocks.1",
        "backbone.layers.3.blocks.1",
    }


def test_swin_baseline_has_no_adaptive_router():
    model = tiny_swin(adaptive_gate=None)
    model(torch.randn(1, 1, 16, 16))
    assert all(state.weights is None for state in model.states)


def test_swin_experts_see_the_scaled_tokens():
    model = tiny_swin().eval()
    layer = model.backbone.layers[1].blocks[3].mlp.layer
    tokens = torch.randn(12, 16)
    previous = SMoERouter(16, 4)(tokens)
    out, state = layer(tokens, previous)
    torch.testing.assert_close(out, layer.apply_experts(tokens * state.weights, state))


def test_assignments_of_another_batch_are_never_used():
    model = tiny_swin().eval()
    first, second = torch.randn(2, 1, 16, 16), torch.randn(3, 1, 16, 16)
    expected = model(second)
    model(first)
    torch.testing.assert_close(model(second), expected)


def test_soft_vit_is_ordinary_in_its_first_moe_block_only():
    model = soft_moe_vit(
        img_size=16,
        patch_size=4,
        in_chans=1,
        num_classes=5,
        embed_dim=16,
        depth=6,
        num_heads=2,
        num_experts=4,
        top_k=2,
    )
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 5)
    assert [state.weights is not None for state in model.states] == [False, True, True]


def test_language_model_compiles_to_the_same_values():
    """One graph without a break, router and grouped experts included."""
    model = small_lm(dropout=0.0).eval()
    tokens = torch.randint(20, (2, 8))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected, ours = model(tokens).logits, compiled(tokens).logits
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
