"""The pruned model: every family, pads, decoding, files, dtypes, and the loop as oracle."""

import copy
import pickle

import pytest
import torch

from ritornello.methods.probe_pruning import ProbePruningConfig, prune_model, reference, unwrap

FAMILIES = [
    ("llama", 2),
    ("llama", 4),
    ("mistral", 2),
    ("qwen2", 2),
    ("opt", 4),
]
ARMS = {
    "wanda_sp": {"method": "static", "score": "wanda_sp"},
    "flap": {
        "method": "static",
        "score": "flap",
        "per_layer_ratios": "flap",
        "bias_compensation": True,
    },
    "flap_legacy": {"method": "static", "score": "flap", "legacy_flap": True},
    "flap_probe": {"score": "flap"},
    "ppsp_static": {"method": "static"},
    "pp": {},
    "pp_fixed": {"fusion": "fixed", "fixed_weight": 0.3},
    "pp_fixed_legacy": {"fusion": "fixed", "fixed_weight": 0.3, "legacy_fixed_mlp": True},
    "pp_no_fusion": {"fusion": "none"},
    "pp_no_update": {"update_history": False},
    "pp_parallel": {"parallel": True},
    "full_batch": {"method": "full_batch"},
}


def logits(model, ids, **options):
    with torch.no_grad():
        return model(input_ids=ids, **options).logits


@pytest.mark.parametrize(("family", "key_value_heads"), FAMILIES)
def test_every_arm_prunes_every_family_and_gives_it_back(
    build, prune, ids, family, key_value_heads
):
    model = build(family, key_value_heads=key_value_heads)
    dense = logits(model, ids)
    names = [name for name, _ in model.named_modules()]
    strides = {name: p.stride() for name, p in model.named_parameters()}
    outputs = {}
    for arm, options in ARMS.items():
        pruned = prune(model, **options)
        outputs[arm] = logits(pruned, ids)
        assert outputs[arm].isfinite().all()
        assert not torch.allclose(outputs[arm], dense, atol=1e-4), arm
        kept = pruned.last_selection
        assert sorted(kept) == [1, 2, 3]
        if arm != "flap":
            # Effective ratio 0.53: int(.53 * 4) = 2 heads, int(.53 * 64) = 33 -> 32 channels.
            assert all((len(h), len(c)) == (2, 32) for h, c in kept.values()), arm
        unwrap(pruned)
        assert torch.equal(logits(model, ids), dense), arm
    assert [name for name, _ in model.named_modules()] == names
    assert {name: p.stride() for name, p in model.named_parameters()} == strides
    assert not torch.equal(outputs["pp"], outputs["pp_fixed"])
    assert not torch.equal(outputs["pp_fixed"], outputs["pp_fixed_legacy"])


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("score", ["ppsp", "wanda_sp"])
def test_layers_equal_the_loop_of_the_paper(build, prune, ids, heads, score):
    model = build("llama", key_value_heads=heads)
    pruned = prune(model, score=score)
    ratio, positions = pruned.ratio, torch.arange(ids.shape[1])[None]
    histories = {n: h.energy.clone() for n, h in pruned.history.items()}
    found = logits(pruned, ids)
    with torch.no_grad():
        x = model.model.embed_tokens(ids)
        rotary = model.model.rotary_emb(x, positions)
        for number, layer in enumerate(model.model.layers):
            if number == 0:
                x = layer(x, position_embeddings=rotary)
                continue
            pair = tuple(histories[f"layers.{number}.{b}"] for b in ("attention", "mlp"))
            parts = pruned.layers[number].parts
            x, kept, channels = reference.pruned_layer(
                x, parts, pruned.pruning, ratio, pair, rotary
            )
            assert torch.equal(kept, pruned.last_selection[number][0])
            assert torch.equal(channels, pruned.last_selection[number][1])
        expected = model.lm_head(model.model.norm(x))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for name, history in pruned.history.items():
        torch.testing.assert_close(history.energy, histories[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
def test_nothing_to_prune_is_the_dense_model(build, prune, ids, family):
    model = build(family)
    dense = logits(model, ids)
    pruned = prune_model(model, ProbePruningConfig(ratio=0, skip_layers=()))
    assert torch.equal(logits(pruned, ids), dense)
    unwrap(pruned)
    # All channels and heads kept, through the pruned path.
    pruned = prune(model, ratio=0.01, multiple=64)
    torch.testing.assert_close(logits(pruned, ids), dense, rtol=1e-5, atol=1e-6)
    assert all((len(h), len(c)) == (4, 64) for h, c in pruned.last_selection.values())


@pytest.mark.parametrize("key_value_heads", [1, 2, 3, 6])
def test_group_sizes(build, prune, ids, key_value_heads):
    model = build(heads=6, width=48, key_value_heads=key_value_heads)
    pruned = prune(model)
    assert logits(pruned, ids).isfinite().all()
    assert all(len(h) == 3 for h, _ in pruned.last_selection.values())


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_stands_at_pads_changes_nothing(build, prune, ids, family, side, attention):
    model = build(family)
    model.set_attn_implementation(attention)
    mask = torch.ones_like(ids)
    pads = slice(0, 5) if side == "left" else slice(11, 16)
    mask[0, pads] = mask[3, pads] = 0
    outputs = []
    for fill in (2, 50):
        filled = torch.where(mask.bool(), ids, fill)
        pruned = prune(model)
        outputs.append(logits(pruned, filled, attention_mask=mask)[mask.bool()])
        unwrap(pruned)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)
    assert outputs[0].isfinite().all()


def test_a_mask_without_pads_is_no_mask(build, prune, ids):
    pruned = prune(build(), update_history=False)
    plain = logits(pruned, ids)
    assert torch.equal(logits(pruned, ids, attention_mask=torch.ones_like(ids)), plain)


def test_a_pruned_model_can_be_saved_and_trained_weights_stay_whole(build, prune, tmp_path):
    model = build()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prune(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, local_files_only=True).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_identical_samples_are_pruned_as_one(build, prune, ids):
    model = build()
    pruned = prune(model, fusion="none")
    one = logits(pruned, ids[:1])
    kept = pruned.last_selection
    four = logits(pruned, ids[:1].expand(4, -1))
    torch.testing.assert_close(four, one.expand(4, -1, -1), rtol=1e-4, atol=1e-5)
    for layer, (heads, channels) in pruned.last_selection.items():
        assert torch.equal(heads, kept[layer][0])
        assert torch.equal(channels, kept[layer][1])


def test_two_runs_are_equal_and_history_moves_only_when_asked(build, prune, ids):
    model = build()
    results = []
    for update in (True, True, False):
        pruned = prune(model, update_history=update)
        before = pruned.history["layers.2.mlp"].energy.clone()
        results.append(logits(pruned, ids))
        after = pruned.history["layers.2.mlp"].energy
        dropped = torch.ones(64, dtype=torch.bool)
        dropped[pruned.last_selection[2][1]] = False
        assert torch.equal(after[:, dropped], before[:, dropped])
        assert torch.equal(after, before) != update
        unwrap(pruned)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(("family", "key_value_heads"), FAMILIES)
@pytest.mark.parametrize("left_pad", [0, 3])
def test_decoding_goes_on_with_the_selection_of_the_prefill(
    build, prune, ids, family, key_value_heads, left_pad
):
    model = build(family, key_value_heads=key_value_heads)
    pruned = prune(model, method="static")  # one selection: decoding must equal a longer prefill
    mask = torch.ones_like(ids)
    mask[:2, :left_pad] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    out = pruned.generate(ids[:, :8], attention_mask=mask[:, :8], **options)
    seen = ids[:, :8]
    for _ in range(6):
        whole = torch.cat([mask[:, :8], torch.ones(6, seen.shape[1] - 8, dtype=torch.long)], 1)
        positions = {}
        if family != "opt":
            positions["position_ids"] = (whole.cumsum(-1) - 1).clamp(min=0)
        best = logits(pruned, seen, attention_mask=whole, **positions)[:, -1].argmax(-1)
        seen = torch.cat([seen, best[:, None]], dim=1)
    assert torch.equal(out, seen)


@pytest.mark.parametrize("key_value_heads", [2, 4])
def test_interleaved_caches_keep_their_own_selection(build, prune, ids, key_value_heads):
    pruned = prune(build(key_value_heads=key_value_heads), fusion="none", update_history=False)
    with torch.no_grad():
        first = pruned(ids[:3, :8], use_cache=True)
        kept = pruned.last_selection
        alone = pruned(ids[:3, 8:9], cache=first.cache).logits
        again = pruned(ids[:3, :8], use_cache=True)
        pruned(ids[3:, :8], use_cache=True)
        assert any(not torch.equal(pruned.last_selection[i][1], kept[i][1]) for i in kept)
        beside = pruned(ids[:3, 8:9], cache=again.cache).logits
    torch.testing.assert_close(beside, alone)


def test_a_foreign_cache_is_refused_where_heads_would_be_mixed(build, prune, ids):
    model = build(key_value_heads=4)
    with torch.no_grad():
        cache = model(ids, use_cache=True).cache
        pruned = prune(model)
        with pytest.raises(ValueError, match="cache must come from a prefill"):
            pruned(ids[:, :1], cache=cache)


def test_history_survives_a_file(build, prune, ids, tmp_path):
    model = build()
    for arm in ("pp", "flap"):
        pruned = prune(model, **ARMS[arm])
        pruned.save_history(tmp_path / "history.safetensors")
        expected = logits(pruned, ids)
        config = pruned.pruning
        unwrap(pruned)
        pruned = prune_model(model, config)
        pruned.load_history(tmp_path / "history.safetensors")
        assert torch.equal(logits(pruned, ids), expected)
        unwrap(pruned)


def test_calibration_starts_afresh_each_time(build, prune, ids):
    pruned = prune(build())
    first = pruned.history["layers.1.attention"].energy.clone()
    pruned.calibrate(ids.flip(0).split(3))
    assert torch.equal(pruned.history["layers.1.attention"].energy, first)
    pruned.reset_history()
    assert pruned.history == {}


def test_calibration_sees_the_dense_model(build, prune, ids):
    model = build()
    states = {}
    hook = model.model.layers[3].mlp.down_proj.register_forward_pre_hook(
        lambda _, args: states.setdefault("u", args[0])
    )
    logits(model, ids.flip(0))
    hook.remove()
    pruned = prune(model)
    expected = states["u"].square().mean(0)
    torch.testing.assert_close(pruned.history["layers.3.mlp"].energy, expected)


def test_a_copied_or_pickled_model_prunes_alike(build, prune, ids):
    pruned = prune(build(), update_history=False)
    expected = logits(pruned, ids)
    for again in (pickle.loads(pickle.dumps(pruned)), copy.deepcopy(pruned)):
        assert torch.equal(logits(again, ids), expected)


def test_hooks_on_the_norms_see_what_enters_them(build, prune, ids):
    pruned = prune(build(), update_history=False)
    unwatched = logits(pruned, ids)
    layer, seen = pruned.layers[3], []
    for norm in (layer.parts.attention_norm, layer.parts.mlp_norm):
        norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    torch.testing.assert_close(logits(pruned, ids), unwatched)
    assert (*ids.shape, layer.parts.query.in_features) in seen
    assert len(seen) == 4  # a probe and the batch, in both blocks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_close_to_single(build, prune, ids, dtype):
    model = build()
    pruned = prune(model, update_history=False)
    single = logits(pruned, ids)
    pruned.to(dtype)
    half = logits(pruned, ids)
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), single, rtol=2e-2, atol=2e-2)


def test_autocast_runs_and_is_close(build, prune, ids):
    pruned = prune(build(), update_history=False)
    single = logits(pruned, ids)
    with torch.autocast("cpu", torch.bfloat16):
        half = logits(pruned, ids)
    torch.testing.assert_close(half.float(), single, rtol=2e-2, atol=2e-2)


def test_inference_mode_and_no_grad_may_alternate(build, prune, ids):
    with torch.inference_mode():
        pruned = prune(build())  # calibration too
        pruned(ids)
    logits(pruned, ids.flip(1))
    with torch.inference_mode():
        pruned(ids)


def test_weights_changed_in_place_are_seen(build, prune, ids):
    model = build()
    pruned = prune(model, method="static")
    before = logits(pruned, ids)
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight.mul_(2)
    assert not torch.allclose(logits(pruned, ids), before)


def test_flops_count_what_runs(build, prune, ids):
    pruned = prune(build(), **ARMS["pp"])
    counted = pruned.flops(6, 16)
    assert 0 < counted.probe < counted.pruned < counted.dense
    assert prune_free(build, ids, "full_batch").probe > 3 * counted.probe
    assert prune_free(build, ids, "static").probe == 0
    assert prune_free(build, ids, "dense").pruned == counted.dense


def prune_free(build, ids, method):
    return prune_model(
        build(), ProbePruningConfig(method=method, skip_layers=(0,), multiple=8)
    ).flops(*ids.shape)


def test_post_norm_opt_is_supported(build, prune, ids):
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=32, ffn_dim=64, num_hidden_layers=3, num_attention_heads=4, vocab_size=97,
        word_embed_proj_dim=16, do_layer_norm_before=False, max_position_embeddings=64,
    )  # fmt: skip
    model = OPTForCausalLM(config).eval()
    dense = logits(model, ids)
    kept_all = prune(model, ratio=0.01, multiple=64)
    torch.testing.assert_close(logits(kept_all, ids), dense, rtol=1e-5, atol=1e-5)
    unwrap(kept_all)
    assert logits(prune(model), ids).isfinite().all()


def test_a_layer_may_lose_all_its_heads_and_still_decode(build, prune, ids):
    ratios = {0: (1.0, 0.5), 1: (0.5, 0.5), 2: (1.0, 0.5), 3: (0.25, 0.0)}
    model = build(key_value_heads=4)
    pruned = prune(model, method="static", skip_layers=(), per_layer_ratios=ratios)
    assert [len(heads) for heads, _ in (pruned.layers[i].static for i in range(4))] == [0, 2, 0, 3]
    with torch.no_grad():
        first = pruned(ids[:, :8], use_cache=True)
        step = pruned(ids[:, 8:9], cache=first.cache).logits
    torch.testing.assert_close(step[:, 0], logits(pruned, ids[:, :9])[:, -1])
