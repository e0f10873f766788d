"""The definitions as slow, obvious loops: oracle of the tests, peer of the benchmarks."""

import numpy as np
import torch
from torch import Tensor, nn


def removal_curve(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    scores: Tensor,
    sizes: list[float],
    *,
    order: str = "morf",
    alpha: float | None = None,
    beta: float | None = None,
    n_samples: int = 50,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Accuracy by size of images (B, C, H, W), one image and one size at a time."""
    batch, _, height, width = images.shape
    d = height * width
    curve = torch.zeros(batch, 1 + len(sizes))
    for b in range(batch):
        with torch.no_grad():
            curve[b, 0] = float(model(images[b : b + 1]).argmax(1)[0] == labels[b])
        ranked = np.argsort(
            (-scores[b] if order == "morf" else scores[b]).flatten().cpu().numpy(), kind="stable"
        )
        for i, s in enumerate(sizes):
            k = int(s * d + 1e-9)
            q = 1.0 if alpha is None else alpha
            if beta is not None and alpha is not None and k * alpha > beta * d:
                q = beta * d / k
            samples = 1 if alpha is None else n_samples
            chosen = torch.zeros(d, dtype=torch.bool)
            chosen[torch.from_numpy(ranked[:k])] = True
            kept = torch.rand(samples, 1, height, width, generator=generator) > q
            kept = kept | ~chosen.view(1, 1, height, width)
            if alpha is None:
                kept = ~chosen.view(1, 1, height, width)
            with torch.no_grad():
                answers = model(images[b : b + 1] * kept.to(images)).argmax(1)
            curve[b, 1 + i] = (answers == labels[b]).float().mean()
    return curve
