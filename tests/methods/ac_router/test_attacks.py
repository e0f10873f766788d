"""Image attacks and the word swap: bounds, effect, determinism."""

import pytest
import torch
from torch import nn

from ritornello.methods.ac_router.attacks import fgsm, pgd, spsa
from ritornello.methods.ac_router.word_swap import STOP_WORDS, word_swap

EPS = 0.1


@pytest.fixture(scope="module")
def victim() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A linear classifier, whose worst perturbation is known: ±eps along the weights' signs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    images = torch.rand(8, 1, 4, 4) * 0.6 + 0.2
    return model.eval(), images, model(images).argmax(1)


def margin(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(images)
    return logits.gather(1, labels[:, None])[:, 0] - logits.gather(1, 1 - labels[:, None])[:, 0]


def attack(name: str, model, images, labels) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if name == "fgsm":
        return fgsm(model, images, labels, eps=EPS)
    if name == "pgd":
        return pgd(model, images, labels, eps=EPS, step=EPS / 4, steps=10, generator=generator)
    return spsa(
        model,
        images,
        labels,
        generator=generator,
        eps=EPS,
        learning_rate=0.05,
        samples=32,
        steps=20,
    )


@pytest.mark.parametrize(("name", "share"), [("fgsm", 0.999), ("pgd", 0.999), ("spsa", 0.8)])
def test_attacks_come_near_the_worst_case_of_a_linear_model(victim, name, share):
    """SPSA sees outputs alone and reaches at least 80 % of the optimum."""
    model, images, labels = victim
    attacked = attack(name, model, images, labels)
    weight = (model[1].weight[0] - model[1].weight[1]).abs().sum()
    lost = margin(model, images, labels) - margin(model, attacked, labels)
    assert (lost >= share * EPS * weight).all()
    assert (attacked - images).abs().max() <= EPS + 1e-6


@pytest.mark.parametrize("name", ["fgsm", "pgd", "spsa"])
def test_attacks_respect_bounds_and_are_deterministic(victim, name):
    model, _, labels = victim
    images = torch.ones(8, 1, 4, 4)
    first = attack(name, model, images, labels)
    assert first.amax() <= 1
    assert first.amin() >= 1 - EPS - 1e-6
    assert torch.equal(first, attack(name, model, images, labels))


def test_attacks_leave_the_model_without_gradients(victim):
    model, images, labels = victim
    pgd(model, images, labels, steps=2)
    assert all(p.grad is None for p in model.parameters())


def test_bad_attack_options_are_named(victim):
    model, images, labels = victim
    with pytest.raises(ValueError, match="eps must not be negative"):
        fgsm(model, images, labels, eps=-1)
    with pytest.raises(ValueError, match="bounds must be"):
        fgsm(model, images, labels, bounds=(1, 0))
    with pytest.raises(ValueError, match="steps must be"):
        pgd(model, images, labels, steps=0)
    with pytest.raises(ValueError, match="samples and steps"):
        spsa(model, images, labels, generator=torch.Generator(), samples=0)


TEXT = "The harbour of the old town lies open to northern storms .\n\nIt is at the end .\n"


def test_word_swap_replaces_content_words_only(generator):
    swapped = word_swap(TEXT, 0.5, generator=generator)
    before, after = TEXT.split("\n"), swapped.split("\n")
    assert len(before) == len(after)
    pairs = [(a, b) for x, y in zip(before, after) for a, b in zip(x.split(), y.split())]
    changed = [a for a, b in pairs if a != b]
    assert all(b == "AAA" for a, b in pairs if a != b)
    assert not {word.lower() for word in changed} & STOP_WORDS
    # line 1 has 7 content words, line 3 one ("end"): round(3.5) = 4 and at least 1
    assert len(changed) == 5


def test_word_swap_rate_over_many_lines(generator):
    line = " ".join(f"word{'x' * (i % 7)}" for i in range(200))
    swapped = word_swap("\n".join([line] * 10), generator=generator)
    assert swapped.count("AAA") == 10 * 5


def test_word_swap_is_seeded_and_can_do_nothing(generator):
    first = word_swap(TEXT, generator=torch.Generator().manual_seed(1))
    assert first == word_swap(TEXT, generator=torch.Generator().manual_seed(1))
    assert word_swap(TEXT, 0.0, generator=generator) == TEXT
    with pytest.raises(ValueError, match="rate must be"):
        word_swap(TEXT, 2.0, generator=generator)
