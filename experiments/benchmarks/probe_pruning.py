"""Probe Pruning: scoring, one layer, and whole prefills of SmolLM2, probes included."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ritornello.experiments.benchmarks.harness import Benchmark
from ritornello.methods.probe_pruning import (
    ProbePruningConfig,
    PrunedModel,
    prune_model,
    reference,
)
from ritornello.methods.probe_pruning.scores import column_weights, score_channels

_BATCH, _TOKENS = 8, 128


def benchmarks() -> Iterator[Benchmark]:
    """Each against its best peer: the literal formula, the published loop, the dense model."""
    yield _scoring()
    from ritornello.common.models import load_smollm2

    generator = torch.Generator().manual_seed(0)
    dense = load_smollm2()
    model = load_smollm2()
    ids = torch.randint(1000, 40000, (_BATCH, _TOKENS), generator=generator)
    # Selections depend on the text, their size and cost do not.
    pruned = prune_model(model, ProbePruningConfig(ratio=0.4))
    pruned.calibrate([ids.flip(0)])
    yield _layer(pruned, ids)
    for name, keep in (("logits of the last token", 1), ("all logits", 0)):
        yield Benchmark(
            f"prefill {_BATCH}x{_TOKENS}, ratio 0.4, {name}",
            ours=partial(_prefill, pruned, ids, keep),
            peer=partial(_prefill, dense, ids, keep),
            peer_name="dense model",
            target=1 / 0.75,
            seconds=60,
        )


def _scoring() -> Benchmark:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(576, 1536, generator=generator)
    energy = torch.rand(1536, generator=generator)
    columns = column_weights(weight, "ppsp")
    return Benchmark(
        "PPsp scores D=576 F=1536",
        ours=lambda: score_channels(energy, columns, "ppsp"),
        peer=lambda: reference.channel_scores(energy, weight, "ppsp"),
        peer_name="literal formula",
        target=1000,
        agree=torch.testing.assert_close,
        inner=100,
    )


def _layer(pruned: PrunedModel, ids: Tensor) -> Benchmark:
    layer = pruned.layers[10]
    generator = torch.Generator().manual_seed(1)
    width = layer.parts.query.in_features
    x = torch.randn(*ids.shape, width, generator=generator)
    rotary = pruned.model.model.rotary_emb(x, torch.arange(ids.shape[1])[None])
    kept = layer.attention.history, layer.mlp.history
    histories = tuple(history.energy.clone() for history in kept if history is not None)

    def published() -> Tensor:
        with torch.no_grad():
            return reference.pruned_layer(
                x, layer.parts, pruned.pruning, pruned.ratio, histories, rotary
            )[0]

    return Benchmark(
        f"one pruned layer {_BATCH}x{_TOKENS}",
        ours=lambda: layer.forward(x, position_embeddings=rotary),
        peer=published,
        peer_name="published loop",
        agree=partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3),
        seconds=10,
    )


@torch.no_grad()
def _prefill(model: torch.nn.Module, ids: Tensor, logits_to_keep: int) -> Tensor:
    return model(input_ids=ids, use_cache=False, logits_to_keep=logits_to_keep).logits
