"""Attacks of the paper's image tables: FGSM and PGD (white box), SPSA (black box), all in L∞."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional

Classifier = Callable[[Tensor], Tensor]


def _check(eps: float, bounds: tuple[float, float]) -> None:
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}")
    if not bounds[0] < bounds[1]:
        raise ValueError(f"bounds must be (low, high) with low < high, got {bounds}")


def _project(
    attacked: Tensor, images: Tensor, eps: float, bounds: tuple[float, float]
) -> Float[Tensor, "b c h w"]:
    return (images + (attacked - images).clamp(-eps, eps)).clamp(*bounds)


def _input_gradient(model: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    images = images.detach().requires_grad_(True)
    with torch.enable_grad():
        loss = functional.cross_entropy(model(images), labels)
        (gradient,) = torch.autograd.grad(loss, images)
    return gradient


def fgsm(
    model: Classifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, "b"],
    *,
    eps: float = 1 / 255,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Float[Tensor, "b c h w"]:
    """One step of size `eps` along the sign of the loss gradient (Goodfellow et al. 2015).

    Args:
        model: maps images to logits; put it into evaluation mode first.
        images: inside `bounds`.
        labels: true classes.
        eps: largest change of a pixel, in the units of the images.
        bounds: legal pixel values.
    """
    _check(eps, bounds)
    step = eps * _input_gradient(model, images, labels).sign()
    return _project(images + step, images, eps, bounds).detach()


def pgd(
    model: Classifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, "b"],
    *,
    eps: float = 1 / 255,
    step: float = 0.15 / 255,
    steps: int = 20,
    generator: Generator | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Float[Tensor, "b c h w"]:
    """Projected gradient ascent (Madry et al. 2018).

    Args:
        model: maps images to logits.
        images: inside `bounds`.
        labels: true classes.
        eps: radius of the L∞ ball.
        step: size of a step.
        steps: number of steps.
        generator: starts at a random point of the ball; without it at the image itself.
        bounds: legal pixel values.
    """
    _check(eps, bounds)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    attacked = images.detach()
    if generator is not None:
        noise = torch.empty(images.shape).uniform_(-eps, eps, generator=generator)
        attacked = _project(attacked + noise.to(images), images, eps, bounds)
    for _ in range(steps):
        ascent = step * _input_gradient(model, attacked, labels).sign()
        attacked = _project(attacked + ascent, images, eps, bounds)
    return attacked.detach()


@torch.no_grad()
def spsa(
    model: Classifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, "b"],
    *,
    generator: Generator,
    eps: float = 1 / 255,
    delta: float = 0.01,
    learning_rate: float = 0.01,
    samples: int = 128,
    steps: int = 20,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Float[Tensor, "b c h w"]:
    """Gradient-free ascent from random simultaneous perturbations (Uesato et al. 2018).

    Every step estimates the gradient of the margin (best wrong logit minus the true one) from
    `samples` pairs of evaluations at ±δ along random signs and gives it to Adam.

    Args:
        model: maps images to logits; only its outputs are used.
        images: inside `bounds`.
        labels: true classes.
        generator: draws the perturbations.
        eps: radius of the L∞ ball.
        delta: δ, half the distance of a pair of evaluations.
        learning_rate: of Adam, in pixel units.
        samples: pairs of evaluations per step.
        steps: number of steps.
        bounds: legal pixel values.
    """
    _check(eps, bounds)
    if min(samples, steps) < 1:
        raise ValueError(f"samples and steps must be at least 1, got {samples} and {steps}")
    change = torch.zeros_like(images).requires_grad_(True)
    optimizer = torch.optim.Adam([change], lr=learning_rate)
    for _ in range(steps):
        estimate = torch.zeros_like(images)
        for _ in range(samples):
            coin = torch.randint(2, images.shape, generator=generator) * 2.0 - 1.0
            signs = coin.to(images)
            plus = _margin(model(images + change + delta * signs), labels)
            minus = _margin(model(images + change - delta * signs), labels)
            slope = (plus - minus) / (2 * delta)
            estimate += slope.view(-1, *[1] * (images.dim() - 1)) * signs
        change.grad = -estimate / samples  # Adam descends, the attack ascends
        optimizer.step()
        change.copy_(_project(images + change, images, eps, bounds) - images)
    return (images + change).detach()


def _margin(logits: Float[Tensor, "b classes"], labels: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    true = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    wrong = logits.scatter(1, labels.unsqueeze(1), -torch.inf).amax(dim=1)
    return wrong - true
