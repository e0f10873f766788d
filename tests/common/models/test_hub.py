"""What of the hub's cache counts, and what is fetched."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

from ritornello.common.data.text import wikitext2
from ritornello.common.errors import UserError
from ritornello.common.models import tiny_causal_lm
from ritornello.common.models.hub import (
    check_architecture,
    check_checkpoint,
    hub_snapshot,
    load_causal_lm,
    load_tokenizer,
)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Puts files into the hub's cache, as an earlier download left them; there is no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def fill(name, **files):
        store = tmp_path / name.replace("/", "--")
        (store / "refs").mkdir(parents=True, exist_ok=True)
        (store / "refs" / "main").write_text("0" * 40)
        for file, content in files.items():
            place = store / "snapshots" / ("0" * 40) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)

    return fill


def test_a_checkpoint_of_which_a_shard_is_missing_is_not_in_the_cache(cached):
    cached("models/one/model", **{"tokenizer.json": "{}", "config.json": "{}"})
    assert (hub_snapshot("one/model") / "tokenizer.json").is_file()
    with pytest.raises(UserError, match="not all of it"):
        hub_snapshot("one/model", weights=True)
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    cached("models/one/model", **{"model.safetensors.index.json": index, "model-1.safetensors": ""})
    with pytest.raises(UserError, match="not all of it"):
        hub_snapshot("one/model", weights=True)
    cached("models/one/model", **{"model-2.safetensors": ""})
    assert hub_snapshot("one/model", weights=True) == hub_snapshot("one/model")


def test_a_subset_that_was_not_fetched_is_not_taken_for_a_wrong_split(cached):
    cached("datasets/Salesforce/wikitext", **{"wikitext-103-v1/test-0.parquet": ""})
    with pytest.raises(UserError, match="not all of it"):
        wikitext2("test")
    with pytest.raises(UserError, match="split must be"):
        wikitext2("evaluation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "pickled"), [(["model.safetensors", "x.bin"], False), (["x.bin"], True)]
)
def test_second_copies_of_the_weights_are_not_fetched(files, pickled, tmp_path, monkeypatch):
    hub, asked = pytest.importorskip("huggingface_hub"), []

    def download(*, ignore_patterns, local_files_only=False, **where):
        if local_files_only:
            raise FileNotFoundError
        asked.extend(ignore_patterns)
        return tmp_path

    info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.setattr(hub.HfApi, "repo_info", lambda self, name, **where: info)
    assert hub_snapshot("one/model") == tmp_path
    assert "original/*" in asked
    assert ("*.bin" not in asked) is pickled


def test_a_folder_is_opened_before_it_is_needed(tmp_path):
    """What lacks or is broken is told without loading the weights."""
    with pytest.raises(UserError, match="holds no whole checkpoint"):
        check_checkpoint(str(tmp_path))
    with pytest.raises(UserError, match="no usable tokenizer"):
        load_tokenizer(str(tmp_path))
    tiny_causal_lm(layers=1).save_pretrained(tmp_path)
    check_checkpoint(str(tmp_path))
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.rename(tmp_path / "kept")
    with pytest.raises(UserError, match="not a usable checkpoint"):
        check_checkpoint(str(tmp_path))
    (tmp_path / "kept").rename(config)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"model.safetensors is not a usable checkpoint"):
        check_checkpoint(str(tmp_path))


def test_an_architecture_is_looked_at_without_the_weights(tmp_path):
    tiny_causal_lm("opt", layers=1).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    seen = []

    def accepts(model):
        seen.extend({parameter.device.type for parameter in model.parameters()})
        raise ValueError("no OPT")

    check_architecture(tiny_causal_lm, accepts)
    assert not seen
    with pytest.raises(UserError, match=f"{tmp_path}: no OPT"):
        check_architecture(partial(load_causal_lm, name_or_path=str(tmp_path)), accepts)
    assert seen == ["meta"]


def test_a_fine_tuned_adapter_is_a_checkpoint(tmp_path):
    peft = pytest.importorskip("peft")
    base, adapter = tmp_path / "base", str(tmp_path / "adapter")
    tiny_causal_lm(layers=1).save_pretrained(base)
    settings = peft.LoraConfig(target_modules=["q_proj"], base_model_name_or_path=str(base))
    peft.get_peft_model(load_causal_lm(str(base), device="cpu"), settings).save_pretrained(adapter)
    check_checkpoint(adapter)
    check_architecture(partial(load_causal_lm, name_or_path=adapter), lambda model: None)
    assert load_causal_lm(adapter, device="cpu").model.layers[0].self_attn.q_proj.lora_A
