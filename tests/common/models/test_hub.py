"""What of the hub's cache counts, and what is fetched."""

import json
from types import SimpleNamespace

import pytest

from ritornello.common.data.text import wikitext2
from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot


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
