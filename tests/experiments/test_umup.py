"""u-muP's experiment: token sources, the large models' sizes, searches that remember their runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.training import choose_trainer
from ritornello.experiments.app import build_plan, compose_config, resolve
from ritornello.experiments.umup.corpus import Corpus, bpe_ids, token_file, write_tokens
from ritornello.experiments.umup.training import Arm, Recipe, validation_loss
from ritornello.methods.umup import DecoderLM, UMuP

TEXT = "the quick brown fox jumps over the lazy dog.\n" * 60


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_byte_pair_tokens_are_made_once_and_give_the_text_back(own_cache):
    tokenizers = pytest.importorskip("tokenizers")
    ids = bpe_ids(TEXT, 300)
    (folder,) = (own_cache / "umup-tokens").iterdir()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert int(ids.max()) < tokenizer.get_vocab_size() <= 300
    assert tokenizer.decode(ids.tolist()) == TEXT.replace("\n", "")
    assert len(ids) < len(TEXT) / 2
    (folder / "tokenizer.json").unlink()  # what is cached is not made again
    assert np.array_equal(bpe_ids(TEXT, 300), ids)


def test_json_lines_become_a_token_file_that_a_corpus_reads(own_cache, tmp_path):
    pytest.importorskip("tokenizers")
    bpe_ids(TEXT, 300)
    (folder,) = (own_cache / "umup-tokens").iterdir()
    documents = tmp_path / "part.jsonl"
    documents.write_text("\n".join(json.dumps({"text": line}) for line in TEXT.split("\n")))
    write_tokens([documents], folder / "tokenizer.json", tmp_path / "tokens.npy")
    corpus = Corpus(token_file(str(tmp_path / "tokens.npy")), 8, 300)
    again = Corpus(TEXT, 8, 300)
    for ours, theirs in ((corpus.batch(0, 3, 4), again.batch(0, 3, 4)),
                         (corpus.held_out(2), again.held_out(2))):  # fmt: skip
        assert ours.dtype == torch.int64
        assert torch.equal(ours, theirs)


def test_windows_are_contiguous_and_validation_is_held_out():
    corpus = Corpus(np.arange(1000), 5)
    for windows, low, high in ((corpus.batch(1, 2, 50), 0, 900), (corpus.held_out(9), 900, 1000)):
        assert windows.shape[1] == 6
        assert (windows.diff(dim=1) == 1).all()
        assert low <= int(windows.min()) <= int(windows.max()) < high


def test_missing_token_files_short_texts_and_unknown_casts_are_named(tmp_path):
    with pytest.raises(UserError, match=r"write_tokens"):
        token_file(str(tmp_path / "none.npy"))
    with pytest.raises(UserError, match="too few for windows of 64"):
        Corpus("short", 64)
    with pytest.raises(UserError, match="fp8 must be one of"):
        Arm(UMuP(), (0,), None, 0, fp8="bf16")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("settings.recipe.batch=0", "batch must be at least 1, got 0"),
        ("settings.recipe.head_dim=48", "width=256 must be a multiple of head_dim=48"),
        ("settings.recipe.warmup_steps=9000", r"warmup_steps=9000 must lie in 0..steps=8192"),
        ("parts.transfer.measure.values=[256,300]", "width=300 must be a multiple of head_dim"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_told_before_the_first_cell(override, told):
    with pytest.raises(UserError, match=told):
        build_plan(resolve(compose_config(["experiment=umup/paper", "device=cpu", override])))


def test_every_width_of_the_paper_profile_has_a_head():
    plan = build_plan(resolve(compose_config(["experiment=umup/paper", "device=cpu"])))
    looked_at, trained = plan.parts["initialisation"].measure, plan.parts["transfer"].measure
    for width in (*looked_at.widths, *trained.values):
        assert replace(looked_at.recipe, width=width).model.heads == width // 64 > 0


def test_held_out_windows_are_scored_on_the_recipes_device_a_few_at_a_time():
    """Training leaves the model on the CPU; the logits of 64 long windows would fill a GPU."""
    recipe = Recipe(16, 1, 16, 2.0, 1, 4096, 1, 0, 0.1, 0.0, 9, 0, device="cpu")
    moved, scored = [], []

    class Model(torch.nn.Module):
        def to(self, device):
            moved.append(device)
            return self

        def loss(self, ids, targets):
            scored.append(len(ids))
            return torch.tensor(2.0)

    corpus = Corpus(np.zeros(60_000, np.uint8), recipe.tokens)
    assert validation_loss(Model(), corpus, recipe) == 2  # type: ignore[arg-type]
    assert (moved, scored) == (["cpu"], [4, 4, 1])


@pytest.fixture
def large():
    """`large` and its plan, whose trainer is chosen for the whole process while it is built."""
    config = resolve(compose_config(["experiment=umup/large", "device=cpu"]))
    yield config["trainer"], build_plan(config)
    choose_trainer({})


@pytest.mark.parametrize(("part", "billions"), [("model_1b", 1), ("model_3b", 3), ("model_7b", 7)])
def test_large_models_have_the_sizes_they_are_named_by(large, part, billions):
    trainer, plan = large
    assert set(plan.parts[part].arms) == {"sp", "umup", "umup_fp8"}
    recipe = plan.parts[part].measure.recipe
    with torch.device("meta"):
        model = DecoderLM(recipe.model)
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=0.05)
    processes = trainer["devices"] * trainer["num_nodes"]
    tokens_a_step = recipe.batch * recipe.tokens * processes * trainer["accumulate"]
    assert recipe.steps * tokens_a_step == pytest.approx(3e11, rel=1e-3)
    # The hardware's FP8 products need sizes that are multiples of 16.
    assert not any(size % 16 for size in (recipe.width, recipe.model.ffn_width))
