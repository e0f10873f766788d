"""Linear judges made with the fill recipe of the golden values."""

import golden_fill
import numpy as np
import pytest
import torch
from torch import nn


@pytest.fixture
def fill():
    return golden_fill.fill


class LinearJudge(nn.Module):
    """Logits W·x + b of the flattened input."""

    def __init__(self, weight, bias):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            self.linear.bias.copy_(bias)
        self.eval()

    def forward(self, x):
        return self.linear(x.flatten(1))


@pytest.fixture
def golden_judge(fill):
    """golden_judge(case) → judge, x (1, C, H, W), label (1,), scores (1, H, W)."""

    def build(case):
        c, h, w, k = (case[name] for name in "CHWK")
        tag = case["tag"]
        weight = torch.from_numpy(fill(f"{tag}.W", (k, c * h * w))).float()
        bias = torch.from_numpy(fill(f"{tag}.b", (k,))).float()
        x = torch.from_numpy(fill(f"{tag}.x", (1, c, h, w))).float()
        label = int((weight @ x.flatten() + bias).argmax())
        bias[label] += case["label_bonus"]
        scores = (x * weight[label].view(1, c, h, w)).sum(1)
        scores = (scores - scores.min()) / (scores.max() - scores.min())
        if case["ties"]:
            scores = (scores * 8).round() / 8
        return LinearJudge(weight, bias), x, torch.tensor([label]), scores

    return build


@pytest.fixture
def linear_judge():
    """linear_judge(shape, classes): a random linear judge, inputs, labels and their true scores."""

    def build(shape=(3, 6, 6), classes=4, batch=5, seed=0, bonus=0.0):
        g = torch.Generator().manual_seed(seed)
        d = int(np.prod(shape))
        weight, bias = torch.randn(classes, d, generator=g), torch.randn(classes, generator=g)
        x = torch.randn(batch, *shape, generator=g)
        judge = LinearJudge(weight, bias)
        labels = judge(x).argmax(1)
        scores = x * weight[labels].view(batch, *shape)
        return judge, x, labels, scores

    return build
