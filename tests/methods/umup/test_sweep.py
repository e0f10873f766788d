"""Searches on losses whose answer is known; trained cells resume to the same curve."""

import math

import pytest
import torch

from ritornello.methods.umup.sweep import (
    independent_search,
    interpolate_loss,
    parabola_optimum,
    random_search,
    transfer_error,
)

GRID = [0.25, 0.5, 1.0, 2.0]


def bowl(values: dict[str, float]) -> float:
    """Separable; best at lr 2, a 0.5, b 1."""
    centres = {"lr": 1.0, "a": -1.0, "b": 0.0}
    return sum((math.log2(values[name]) - centre) ** 2 for name, centre in centres.items())


def test_independent_search_finds_a_separable_optimum_in_line_searches():
    result = independent_search(bowl, GRID, {"a": GRID, "b": GRID})
    assert result.best.values == {"lr": 2.0, "a": 0.5, "b": 1.0}
    assert len(result.trials) == 4 + 3 + 3 + 1
    assert result.trials[-1].phase == "combined"
    assert result.best_so_far() == sorted(result.best_so_far(), reverse=True)


def test_diverged_runs_never_win():
    result = independent_search(lambda v: math.nan if v["lr"] > 1 else v["lr"], GRID, {})
    assert result.best.values["lr"] == 0.25


def test_random_search_repeats_for_a_seed_and_stays_on_the_grid():
    def run(seed: int) -> list[dict[str, float]]:
        generator = torch.Generator().manual_seed(seed)
        grids = {"lr": GRID, "a": GRID, "b": GRID}
        return [t.values for t in random_search(bowl, grids, 8, generator=generator).trials]

    assert run(0) == run(0) != run(1)
    assert all(value in GRID for values in run(0) for value in values.values())


def test_transfer_error_is_zero_for_separable_losses_and_counts_moved_optima():
    separable = torch.tensor([[3.0, 1.0, 2.0], [4.0, 2.0, 3.0]])
    assert transfer_error(separable) == 0
    moved = torch.tensor([[3.0, 1.0, 2.0], [2.0, 3.0, 4.0], [5.0, 4.0, 3.0]])
    assert transfer_error(moved) == pytest.approx(((3 - 1) + (2 - 1)) / 2)
    with pytest.raises(ValueError, match="fixed >= 2"):
        transfer_error(torch.ones(1, 3))


def test_parabola_optimum_is_exact_for_parabolas_and_stays_inside_the_grid():
    positions = [-3.0, -2.0, -1.0, 0.0]
    assert parabola_optimum(positions, [(p + 1.3) ** 2 for p in positions]) == pytest.approx(-1.3)
    assert parabola_optimum(positions, [1, 2, 3, 4]) == -3
    assert parabola_optimum(positions, [3.0, 1.0, math.nan, 5.0]) == -2


def test_losses_are_interpolated_linearly():
    assert interpolate_loss([0, 1, 2], [3.0, 1.0, 5.0], 1.25) == pytest.approx(2)
    assert interpolate_loss([0, 1, 2], [3.0, 1.0, 5.0], 9) == 5


def test_killed_training_resumes_to_the_identical_curve(tmp_path):
    pytest.importorskip("lightning")
    from ritornello.experiments.umup.training import Arm, Corpus, Recipe, build, train
    from ritornello.methods.umup import UMuP

    recipe = Recipe(
        width=16, layers=1, head_dim=8, ffn_ratio=2.0, batch=2, tokens=8, steps=6, warmup_steps=2,
        final_ratio=0.1, weight_decay=2**-10, validation_windows=2, checkpoint_every=2,
        device="cpu",
    )  # fmt: skip
    arm = Arm(UMuP(), (0,), None, 0)
    corpus = Corpus("The quick brown fox jumps over the lazy dog. " * 20, recipe.tokens)

    def run(folder, watch=None) -> list[float]:
        model = build(arm, recipe, 0)
        return train(model, arm, recipe, corpus, rate=1.0, seed=0, scratch=folder, watch=watch)

    def kill(step: int, _) -> None:
        if step == 4:
            raise KeyboardInterrupt

    straight = run(tmp_path / "straight")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(tmp_path / "killed", kill)
    assert run(tmp_path / "killed") == straight
