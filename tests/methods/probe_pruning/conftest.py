"""Tiny models of every family, and a calibrated Probe Pruning model on each."""

import pytest
import torch

from ritornello.common.models import tiny_causal_lm
from ritornello.methods.probe_pruning import ProbePruningConfig, prune_model


@pytest.fixture
def build():
    """build(architecture, **sizes): a tiny random model with four layers."""

    def build_model(architecture="llama", **sizes):
        defaults = {"layers": 4, "width": 32, "hidden": 64, "heads": 4, "key_value_heads": 2}
        return tiny_causal_lm(architecture, **{**defaults, "vocabulary": 97, **sizes})

    return build_model


@pytest.fixture
def ids():
    """Token ids of six samples of 16 tokens."""
    return torch.randint(2, 97, (6, 16), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def prune(ids):
    """prune(model, **options): pruned with sizes that fit a tiny model, and calibrated."""

    def prune_and_calibrate(model, **options):
        defaults = {
            "skip_layers": (0,),
            "multiple": 8,
            "probe_ratios": {"tokens": 0.5, "samples": 0.5},
        }
        pruned = prune_model(model, ProbePruningConfig(**{**defaults, **options}))
        pruned.calibrate(ids.flip(0).split(3))
        return pruned

    return prune_and_calibrate
