"""Probe Pruning: prune a language model anew for every batch, after a look at a part of it."""

from ritornello.methods.probe_pruning.baselines import flap_head_cost, flap_layer_ratios
from ritornello.methods.probe_pruning.config import ProbePruningConfig
from ritornello.methods.probe_pruning.history import fuse_states
from ritornello.methods.probe_pruning.model import PrunedModel, prune_model, unwrap
from ritornello.methods.probe_pruning.probe import select_probe
from ritornello.methods.probe_pruning.scores import channel_scores, head_scores
from ritornello.methods.probe_pruning.selection import effective_ratio, num_channels_to_prune

__all__ = [
    "ProbePruningConfig", "PrunedModel", "channel_scores", "effective_ratio", "flap_head_cost",
    "flap_layer_ratios", "fuse_states", "head_scores", "num_channels_to_prune", "prune_model",
    "select_probe", "unwrap",
]  # fmt: skip
