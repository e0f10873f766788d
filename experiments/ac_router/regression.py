"""Part B: a mixture of experts learns one linear map per cluster; each cluster has its features."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from ritornello.common.moe import Experts, MoELayer, RoutingState
from ritornello.common.moe.statistics import contingency, load, normalized_mutual_information
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.ac_router.measurements import curve, routing
from ritornello.experiments.ac_router.routers import Routers, total_balance_loss


class ClusterTask:
    """Tokens of K clusters and their targets, a linear map of the token per cluster.

    Cluster k is centred at N(0, 1), tight on random features of its own and loose on the rest.
    """

    def __init__(
        self,
        *,
        clusters: int,
        features: int,
        tight_features: int,
        tight_spread: float,
        loose_spread: float,
        outputs: int,
        seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.seed = seed
        self.centroids = torch.randn(clusters, features, generator=generator)
        ranks = torch.rand(clusters, features, generator=generator).argsort(dim=1)
        self.spread = torch.where(ranks < tight_features, tight_spread, loose_spread)
        self.maps = torch.randn(clusters, features, outputs, generator=generator) / features**0.5

    def draw(self, count: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Independent set `number`: tokens (n, d), targets (n, outputs), clusters (n,)."""
        generator = torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + number)
        labels = torch.randint(len(self.centroids), (count,), generator=generator)
        noise = torch.randn(count, self.centroids.shape[1], generator=generator)
        tokens = self.centroids[labels] + self.spread[labels] * noise
        targets = torch.einsum("nd,ndo->no", tokens, self.maps[labels])
        return tokens, targets, labels


class MoERegressor(nn.Module):
    """Linear embedding, MoE layers x = LN(x + MoE(x)), linear read-out."""

    def __init__(
        self,
        routers: Routers,
        *,
        features: int,
        outputs: int,
        width: int,
        hidden: int,
        num_experts: int,
        layers: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.read_out = nn.Linear(width, outputs)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList()
        for layer in range(layers):
            make = routers.gate if layer == 0 else routers.adaptive_gate or routers.gate
            experts = Experts(num_experts, width, hidden)
            self.layers.append(MoELayer(experts, make(width, num_experts)))

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[RoutingState]]:
        """Returns predictions (n, outputs) and the routing of every layer."""
        hidden = self.embed(tokens)
        states: list[RoutingState] = []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            output, state = layer(hidden, states[-1] if states else None)
            states.append(state)
            hidden = norm(hidden + output)
        return self.read_out(hidden), states


@dataclass
class Regression(Experiment):
    """Trains the regressor and measures its error, clean and on noisy tokens, and its routing.

    Attributes:
        clusters: K; `features`, `tight_features`, `tight_spread`, `loose_spread` and `outputs`
            describe the task, `width`, `hidden`, `num_experts` and `layers` the model.
        train_tokens: size of the training set.
        steps: training steps of `batch_size` tokens, drawn from the training set with replacement.
        learning_rate: of Adam.
        balance_weight: of the balance loss; the official language-model code has none active.
        input_noise: standard deviation of the noise added to test tokens.
        test_tokens: size of the test set.
        checkpoint_every: steps between checkpoints.
    """

    clusters: int = 8
    features: int = 24
    tight_features: int = 6
    tight_spread: float = 0.3
    loose_spread: float = 3.0
    outputs: int = 4
    width: int = 48
    hidden: int = 32
    num_experts: int = 8
    layers: int = 3
    train_tokens: int = 10_000
    steps: int = 500
    batch_size: int = 512
    learning_rate: float = 2e-3
    balance_weight: float = 0.0
    input_noise: float = 0.5
    test_tokens: int = 4096
    checkpoint_every: int = 250

    def task(self, seed: int) -> ClusterTask:
        """The task of a seed."""
        return ClusterTask(
            clusters=self.clusters,
            features=self.features,
            tight_features=self.tight_features,
            tight_spread=self.tight_spread,
            loose_spread=self.loose_spread,
            outputs=self.outputs,
            seed=seed,
        )

    def measure(self, arm: Routers, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Trains with the arm's routers; yields errors, agreement with the clusters, curves."""
        from ritornello.common.training import fit
        from ritornello.experiments.ac_router.training import Training

        task = self.task(cell.seed)
        torch.manual_seed(cell.seed)
        model = MoERegressor(
            arm,
            features=self.features,
            outputs=self.outputs,
            width=self.width,
            hidden=self.hidden,
            num_experts=self.num_experts,
            layers=self.layers,
        )
        training = Training(model, self._loss, steps=self.steps, learning_rate=self.learning_rate)
        losses = fit(
            training,
            self._reader(task, cell.seed),
            steps=self.steps,
            seed=cell.seed,
            scratch=context.scratch,
            checkpoint_every=self.checkpoint_every,
        ).losses
        yield from curve(losses, context)
        yield from self._evaluate(model.eval(), task, cell, context)

    def _reader(self, task: ClusterTask, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        tokens, targets, _ = task.draw(self.train_tokens, 0)

        def read(number: int) -> tuple[Tensor, Tensor]:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            rows = torch.randint(len(tokens), (self.batch_size,), generator=generator)
            return tokens[rows], targets[rows]

        return read

    def _loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        predictions, states = model(batch[0])
        loss = (predictions - batch[1]).square().mean()
        if self.balance_weight:
            loss = loss + self.balance_weight * total_balance_loss(model, states)
        return loss

    @torch.no_grad()
    def _evaluate(
        self, model: nn.Module, task: ClusterTask, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        tokens, targets, labels = task.draw(self.test_tokens, 1)
        generator = Generator().manual_seed(cell.seed)
        noise = self.input_noise * torch.randn(tokens.shape, generator=generator)
        predictions, states = model(tokens)
        noisy, _ = model(tokens + noise)
        yield Measurement("test_mse", float((predictions - targets).square().mean()))
        yield Measurement("noisy_mse", float((noisy - targets).square().mean()))
        for number, state in enumerate(states, start=1):
            nmi = normalized_mutual_information(state.indices[:, 0], labels)
            yield Measurement("nmi", nmi, coordinates={"layer": number})
        yield from routing(states, self.num_experts)
        last = states[-1].indices[:, 0]
        shown = slice(0, 600)
        np.savez_compressed(
            context.artifacts / "routing.npz",
            confusion=contingency(last, labels, (self.num_experts, self.clusters)).numpy(),
            load=torch.stack([load(s.indices, self.num_experts) for s in states]).numpy(),
            tokens=tokens[shown].numpy(),
            experts=last[shown].numpy(),
            labels=labels[shown].numpy(),
        )
