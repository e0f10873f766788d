"""Each wrong value is one error that names it."""

import pytest
import torch

from ritornello.methods.probe_pruning import (
    ProbePruningConfig,
    channel_scores,
    fuse_states,
    head_scores,
    prune_model,
    select_probe,
)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ratio": 1.0}, "ratio must be in"),
        ({"ratio": -0.1}, "ratio must be in"),
        ({"method": "sparse"}, "method must be one of probe, static, full_batch, dense"),
        ({"score": "wanda"}, "score must be one of ppsp, wanda_sp, flap"),
        ({"fusion": "mean"}, "fusion must be one of"),
        ({"probe_ratios": {"tokens": 0.0, "samples": 0.1}}, "must be in \\(0, 1\\]"),
        ({"probe_ratios": {"tokens": 0.5}}, "must have a ratio for 'samples'"),
        ({"order": ("tokens", "tokens")}, "at most once"),
        ({"order": ("rows",)}, "axis must be one of tokens, samples"),
        ({"momentum": 1.5}, "momentum"),
        ({"fixed_weight": -1}, "fixed_weight"),
        ({"multiple": 0}, "multiple"),
        ({"bias_compensation": True}, "bias_compensation needs method='static'"),
        ({"per_layer_ratios": "owl", "method": "static"}, "per_layer_ratios must be one of flap"),
        ({"per_layer_ratios": {1: (2, 0)}, "method": "static"}, "must lie in"),
    ],
)
def test_configuration(options, named):
    with pytest.raises(ValueError, match=named):
        ProbePruningConfig(**options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"skip_layers": (0, 9)}, "skip_layers must lie in"),
        ({"skip_layers": (0, 1, 2), "ratio": 0.4}, "lower ratio or skip fewer"),
        ({"skip_layers": (0, 1, 2, 3)}, "no layer is left"),
        (
            {"skip_layers": (0,), "method": "static", "per_layer_ratios": {1: (0, 0)}},
            "must name the pruned layers",
        ),
    ],
)
def test_configuration_that_does_not_fit_the_model(build, options, named):
    with pytest.raises(ValueError, match=named):
        prune_model(build(), ProbePruningConfig(**options))


def test_unsupported_models(build):
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=11))
    with pytest.raises(ValueError, match="llama, mistral, qwen2, opt, got GPT2LMHeadModel"):
        prune_model(gpt2)
    with pytest.raises(ValueError, match="model must be a causal language model"):
        prune_model(build().model)
    with pytest.raises(ValueError, match="got Linear"):
        prune_model(torch.nn.Linear(2, 2))
    model = build()
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="attn_implementation must be one of sdpa, eager"):
        prune_model(model)
    model = build()
    model.model.layers[1].mlp.up_proj = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"plain linear layers, got Identity in layer 1"):
        prune_model(model)


def test_pruning_twice(build, prune):
    model = build()
    pruned = prune(model)
    for again in (model, pruned):
        with pytest.raises(ValueError, match="pruned already"):
            prune_model(again)


def test_batches(build, prune, ids):
    model = build()
    pruned = prune_model(model, ProbePruningConfig(skip_layers=(0,), multiple=8))
    with pytest.raises(ValueError, match=r"call calibrate\(...\) or load_history"):
        pruned(ids)
    with pytest.raises(ValueError, match="at least one batch"):
        pruned.calibrate([])
    with pytest.raises(ValueError, match="share one length, got 5 tokens after 16"):
        pruned.calibrate([ids, ids[:, :5]])
    with pytest.raises(ValueError, match="batches must hold"):
        pruned.calibrate([ids[0]])
    pruned.calibrate([ids])
    with pytest.raises(ValueError, match="32 tokens but the history covers 16"):
        pruned(ids.repeat(1, 2))
    with pytest.raises(ValueError, match="input_ids must not be empty"):
        pruned(ids[:0])
    with torch.no_grad():
        model.model.embed_tokens.weight[int(ids[0, 0])] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        pruned(ids)


def test_history_files(build, prune, tmp_path):
    model = build()
    fresh = prune_model(model, ProbePruningConfig(skip_layers=(0,), multiple=8))
    with pytest.raises(ValueError, match="no history to save"):
        fresh.save_history(tmp_path / "h.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x08")
    for name in ("absent.safetensors", "cut.safetensors"):
        with pytest.raises(ValueError, match=f"{name}.* is not a readable history"):
            fresh.load_history(tmp_path / name)
    prune(build(hidden=128)).save_history(tmp_path / "wide.safetensors")
    with pytest.raises(ValueError, match=r"no history of layers.1.mlp with 64 channels"):
        fresh.load_history(tmp_path / "wide.safetensors")
    prune(build()).save_history(tmp_path / "plain.safetensors")
    flap = prune_model(
        build(), ProbePruningConfig(method="static", score="flap", skip_layers=(0,), multiple=8)
    )
    with pytest.raises(ValueError, match="no fluctuations"):
        flap.load_history(tmp_path / "plain.safetensors")


def test_functions():
    x = torch.randn(2, 4, 3)
    ratios = {"tokens": 0.5, "samples": 0.5}
    with pytest.raises(ValueError, match="hidden and residual"):
        select_probe(x, x[:1], ratios)
    with pytest.raises(ValueError, match="must not be empty"):
        select_probe(x[:0], x[:0], ratios)
    with pytest.raises(ValueError, match="residual must be finite"):
        select_probe(x, x / 0, ratios)
    with pytest.raises(ValueError, match="probe and history must have one shape"):
        fuse_states(x[0], x[0, :2])
    with pytest.raises(ValueError, match="fusion must be one of"):
        fuse_states(x[0], x[0], "sum")
    with pytest.raises(ValueError, match="energy must be"):
        channel_scores(torch.ones(3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="score must be one of"):
        channel_scores(torch.ones(3), torch.ones(2, 3), "magnitude")
    with pytest.raises(ValueError, match="num_heads must divide"):
        head_scores(torch.ones(3), torch.ones(2, 3), 2)
