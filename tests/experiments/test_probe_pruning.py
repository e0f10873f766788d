"""Probe Pruning's experiment: one model for all parts, texts looked at before the first cell."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.models import tiny_causal_lm
from ritornello.common.runs import Cell, CellContext
from ritornello.experiments.probe_pruning.experiment import Perplexity
from ritornello.experiments.rrs.smoke import character_tokenizer
from ritornello.methods.probe_pruning import ProbePruningConfig

SETTINGS: dict[str, Any] = {
    "model": partial(tiny_causal_lm, layers=3),
    "tokenizer": character_tokenizer,
    "text": lambda: "some text " * 40,
    "calibration_text": lambda: "other text " * 40,
    "calibration_samples": 4,
    "tokens": 8,
    "batch_size": 2,
    "batches": 1,
    "order": "consecutive",
    "agreement": False,
}


def test_parts_share_one_model_which_no_arm_changes_and_which_goes_with_them(tmp_path):
    first, second = Perplexity(**SETTINGS), Perplexity(**SETTINGS | {"tokens": 4})
    model = first.language_model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruned = ProbePruningConfig(skip_layers=(0,))
    cell = Cell("language_model", "pp", 0, {"place": 0.0, "ratio": 0.5})
    context = CellContext(tmp_path, tmp_path)
    for part in (first, second):
        list(part.measure(pruned, cell, context))
        with pytest.raises(ValueError, match="skip_layers"):
            list(part.measure(ProbePruningConfig(skip_layers=(9,)), cell, context))
    assert second.language_model is model
    assert str(model) == str(tiny_causal_lm(layers=3))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    other = Perplexity(**SETTINGS | {"model": partial(tiny_causal_lm, layers=4)})
    assert len(other.language_model.model.layers) == 4
    gone = weakref.ref(model)
    del model, first, second, part, value
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("short", "message"),
    [
        ({"text": lambda: "ab"}, "the text has 2 tokens"),
        ({"text": lambda: "ab", "batches": None, "order": "random"}, "windows=2 of tokens=8"),
        ({"calibration_text": lambda: ["a", "b"]}, "only 0 of 2 documents"),
    ],
)
def test_a_text_that_is_too_short_is_told_before_the_first_cell(short, message):
    with pytest.raises(UserError, match=message):
        Perplexity(**SETTINGS | short).prepare()
