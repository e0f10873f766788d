"""What is measured: power against the number of completions, distances, audits, text quality."""

from collections.abc import Iterator

from ritornello.common.reporting import Figure, Results
from ritornello.experiments.model_equality_testing.experiment import (
    Distances,
    EndpointAudit,
    ModelPower,
)
from ritornello.experiments.model_equality_testing.figures import distance_matrix, power_by

__all__ = ["Distances", "EndpointAudit", "ModelPower", "figures"]


def figures(results: Results) -> Iterator[Figure]:
    """Power curves by completions a prompt and by length, and the distances."""
    yield from power_by(results, "power", "n_per_prompt", "power_by_sample_size")
    yield from power_by(results, "power", "length", "power_by_length")
    yield from distance_matrix(results)
