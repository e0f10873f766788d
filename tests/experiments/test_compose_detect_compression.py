"""Compressed models behind an endpoint: what is served is what the methods make of the model."""

import pytest
import torch

from ritornello.common.chat import GenerationParams, TransformersClient, replicates
from ritornello.common.errors import UserError
from ritornello.common.models import tiny_causal_lm
from ritornello.experiments.compose_detect_compression.experiment import Distances
from ritornello.experiments.compose_detect_compression.served import (
    Calibration,
    Pruned,
    Quantised,
)
from ritornello.experiments.model_equality_testing.served import Served
from ritornello.methods.probe_pruning import ProbePruningConfig, prune_model
from ritornello.methods.rrs import RRSConfig, quantize_model

RRS = RRSConfig(group_size=16, weight_method="rtn", targets="all")


class Letters:
    """A tokenizer of single characters."""

    chat_template = None
    eos_token_id = 0

    def __call__(self, texts, add_special_tokens=False, **options):
        if isinstance(texts, str):
            return {"input_ids": [ord(c) % 128 for c in texts]}
        return {"input_ids": [[ord(c) % 128 for c in text] for text in texts]}

    def decode(self, ids, **options):
        return "".join(map(chr, ids))


def reference():
    return tiny_causal_lm(layers=5, width=32, hidden=192, vocabulary=128, seed=1)


def calibration():
    return Calibration(Letters, lambda: "the sea and the wind " * 40, 2, 24, 2)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(1, 127, (1, 20), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_the_quantised_model_is_that_of_rotated_runtime_smooth(ids):
    served = Quantised(rrs=RRS).load(reference)(ids).logits
    torch.testing.assert_close(served, quantize_model(reference(), RRS)(ids).logits)
    assert float((served - reference()(ids).logits).abs().max()) > 1e-3


@torch.no_grad()
def test_the_pruned_model_is_that_of_probe_pruning(ids):
    config = ProbePruningConfig(ratio=0.3)
    model = reference()
    pruned = prune_model(model, config)
    pruned.calibrate(calibration().ids().split(2))
    served = Pruned(pruning=config, calibration=calibration()).load(reference)(ids).logits
    torch.testing.assert_close(served, pruned(input_ids=ids).logits)
    assert float((served - reference()(ids).logits).abs().max()) > 1e-3


def test_a_pruned_model_answers_through_the_batched_client():
    config = ProbePruningConfig(ratio=0.3)
    model = Pruned(pruning=config, calibration=calibration()).load(reference)
    client = TransformersClient(model, Letters(), model_id="pruned")
    params = GenerationParams(max_tokens=6, temperature=1.0)
    answers = client.generate(replicates("the sea and", 8), params)
    alone = client.generate(replicates("the sea and", 8)[:1], params)
    assert len({answer.token_ids for answer in answers}) > 4
    assert len(alone[0].token_ids) == len(answers[0].token_ids)


def test_a_history_needs_calibration_text():
    with pytest.raises(ValueError, match="calibration is needed"):
        Pruned(pruning=ProbePruningConfig(ratio=0.3)).load(reference)


def test_missing_calibration_text_is_told_before_a_pool_is_drawn():
    def absent():
        raise UserError("the text is not there")

    class Undrawn:
        def draw(self, served):
            raise AssertionError("drawn too early")

    text = Calibration(Letters, absent, 2, 24, 2)
    for served in (Quantised(rrs=RRS, calibration=text), Pruned(calibration=text)):
        study = Distances(Undrawn(), {"reference": Served(), "served": served}, "reference")
        with pytest.raises(UserError, match="the text is not there"):
            study.prepare()


def test_identities_tell_everything_apart_that_changes_answers():
    kinds = [
        Served(),
        Served(seed=1),
        Served(watermark_bias=2.5),
        Quantised(rrs=RRS),
        Quantised(rrs=RRSConfig(weight_method="rtn")),
        Pruned(calibration=calibration()),
        Pruned(pruning=ProbePruningConfig(ratio=0.2), calibration=calibration()),
    ]
    names = [kind.identity(reference) for kind in kinds]
    assert len(set(names)) == len(names)
    assert names == [kind.identity(reference) for kind in kinds]
