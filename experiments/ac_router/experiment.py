"""What is measured: identification of clusters, and what the router costs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ritornello.common.moe import Experts, MoELayer, RoutingState, SMoERouter
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.ac_router.figures import figures
from ritornello.methods.ac_router.identify import Rule, feature_mixture, identify
from ritornello.methods.ac_router.router import RouterFactory
from ritornello.methods.ac_router.weights import adaptive_weights

__all__ = ["Cost", "Identification", "RuleArm", "figures"]


@dataclass
class RuleArm:
    """How points are assigned, and how the labels behind the weights are refined (part A)."""

    rule: Rule
    refine: Rule = "own_metric"


@dataclass
class Identification(Experiment):
    """Part A: how many points of a feature-tight mixture end in their own cluster.

    Attributes:
        points, clusters, features, tight_features, tight_spread, loose_spread: of the mixture.
        steps: re-estimations of the weights.
    """

    points: int = 2000
    clusters: int = 8
    features: int = 16
    tight_features: int = 4
    tight_spread: float = 0.25
    loose_spread: float = 2.0
    steps: int = 3

    def measure(self, arm: RuleArm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Yields the accuracy after every step."""
        mixture = feature_mixture(
            points=self.points,
            clusters=self.clusters,
            features=self.features,
            tight_features=self.tight_features,
            tight_spread=self.tight_spread,
            loose_spread=self.loose_spread,
            generator=torch.Generator().manual_seed(cell.seed),
        )
        found = identify(
            mixture.points, mixture.centroids, arm.rule, refine=arm.refine, steps=self.steps
        )
        for step, labels in enumerate(found, start=1):
            accuracy = float((labels == mixture.labels).float().mean())
            yield Measurement("accuracy", accuracy, coordinates={"step": step})
        weights = adaptive_weights(mixture.points, found[-1], self.clusters)
        np.savez_compressed(
            context.artifacts / "weights.npz", weights=weights.numpy(), tight=mixture.tight.numpy()
        )


@dataclass
class Cost(Experiment):
    """What the router adds to a training step of one MoE layer, against the same gate without it.

    Attributes:
        tokens, d_model, hidden, num_experts: sizes, of the paper's medium language model.
        repeats: pairs of steps; the two sides run in turn.
    """

    tokens: int = 8192
    d_model: int = 352
    hidden: int = 352
    num_experts: int = 16
    repeats: int = 12

    def measure(
        self, arm: RouterFactory, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        """Yields the ratio of processor times of the arm's layer and the plain SMoE layer."""
        torch.manual_seed(cell.seed)
        tokens = torch.randn(self.tokens, self.d_model)
        previous = SMoERouter(self.d_model, self.num_experts)(tokens)
        previous = RoutingState(*(x.detach() for x in previous[:3]))
        experts = Experts(self.num_experts, self.d_model, self.hidden)
        plain = MoELayer(experts, SMoERouter(self.d_model, self.num_experts))
        layer = MoELayer(experts, arm(self.d_model, self.num_experts))
        for warm in (plain, layer):
            self._seconds(warm, tokens, previous)
        ratios = []
        for _ in range(self.repeats):
            ours = self._seconds(layer, tokens, previous)
            ratios.append(ours / self._seconds(plain, tokens, previous))
        value = float(np.mean(ratios))
        yield Measurement("time_ratio", value, samples=ratios)

    @staticmethod
    def _seconds(layer: MoELayer, tokens: Tensor, previous: RoutingState) -> float:
        """Processor time of one forward and backward pass: what other processes do is left out."""
        inputs = tokens.clone().requires_grad_()
        start = time.process_time()
        output, _ = layer(inputs, previous)
        output.square().sum().backward()
        return time.process_time() - start
