"""A training that is interrupted goes on to the same loss curve."""

import multiprocessing
import os
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from ritornello.common.training import choose_trainer, cosine_with_warmup, fit

module_of_fit = sys.modules[fit.__module__]
STEPS = 12


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = cosine_with_warmup(optimizer, steps=STEPS, warmup_steps=3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def batch(number: int):
    g = torch.Generator().manual_seed(number)
    x = torch.randn(6, 4, generator=g)
    return x, x.sum(1, keepdim=True)


class Killed(Exception):
    pass


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("killed_at", [1, 5, 10])
def test_interrupted_training_gives_the_unbroken_loss_curve(tmp_path, killed_at, accumulate):
    straight = fit(Regression(), batch, steps=STEPS, accumulate=accumulate)

    def dying_batch(number: int):
        if number == killed_at * accumulate:
            raise Killed
        return batch(number)

    options = {"scratch": tmp_path, "checkpoint_every": 2, "accumulate": accumulate}
    with pytest.raises(Killed):
        fit(Regression(), dying_batch, steps=STEPS, **options)
    module = Regression()
    resumed = fit(module, batch, steps=STEPS, **options)
    assert resumed.resumed_from == killed_at // 2 * 2
    assert resumed.losses == straight.losses
    again = fit(Regression(), batch, steps=STEPS, **options)
    assert again.resumed_from == STEPS
    assert again.losses == straight.losses


def test_accumulated_batches_equal_one_large_batch():
    """8 rows at once and 2 × 4 rows accumulated take the same steps."""

    class Plain(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.net[1].p = 0.0

    def large(number: int):
        parts = [batch(2 * number), batch(2 * number + 1)]
        return tuple(torch.cat(p) for p in zip(*parts, strict=True))

    whole, halves = Plain(), Plain()
    fit(whole, large, steps=5)
    fit(halves, batch, steps=5, accumulate=2)
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_fused_optimiser_is_clipped_in_mixed_precision():
    """Lightning refuses it, though without a gradient scaler nothing stands against it."""

    class Fused(Regression):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0, fused=True)

    module = Fused()
    before = [p.detach().clone() for p in module.parameters()]
    fit(module, batch, steps=1, clip_norm=1e-3, precision="bf16-mixed")
    moved = sum((a - b).square().sum() for a, b in zip(module.parameters(), before, strict=True))
    assert float(moved.sqrt()) == pytest.approx(1e-3, rel=1e-2)


class Block(nn.Sequential):
    forward_methods = ("begin",)

    def begin(self, x):
        return self[0](x)


class Blocks(Regression):
    """Parameters within blocks, outside them, and one that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(4, 5)
        self.blocks = nn.ModuleList(
            Block(nn.Linear(5, 5), nn.Tanh(), nn.Dropout(0.2)) for _ in range(2)
        )
        self.head = nn.Linear(5, 1)
        self.idle = nn.Parameter(torch.ones(3))
        self.head.weight.rate = 0.5  # a method's own tag
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen += 1
        x = self.net(x)
        for block in self.blocks:
            x = x + block(block.begin(x))
        return nn.functional.mse_loss(self.head(x), y)

    def configure_optimizers(self):
        assert self.head.weight.rate == 0.5
        return super().configure_optimizers()


@pytest.mark.parametrize("strategy", ["ddp_find_unused_parameters_true", "fully_shard"])
def test_two_processes_take_the_steps_of_one(tmp_path, strategy):
    """Over gloo they equal one process that accumulates, and checkpoints move both ways."""
    alone, moved = Blocks(), Blocks()
    expected = fit(alone, batch, steps=6, accumulate=2, clip_norm=0.5).losses
    kept = {"scratch": tmp_path, "checkpoint_every": 2, "clip_norm": 0.5}
    fit(moved, batch, steps=2, accumulate=2, **kept)
    closure = partial(lambda read, number: read(number), batch)
    there = fit(moved, closure, steps=4, **kept, devices=2, strategy=strategy, loader_workers=1)
    assert there.resumed_from == 2
    assert there.losses[:4] == expected[:4]
    pairs = [(a + b) / 2 for a, b in zip(expected[4:8:2], expected[5:8:2], strict=True)]
    assert there.losses[4:] == pytest.approx(pairs, rel=1e-5)
    assert int(moved.seen) == 2 * 2 + 2
    back = fit(Blocks(), batch, steps=6, accumulate=2, **kept)
    assert back.resumed_from == 4
    assert back.losses[-4:] == pytest.approx(expected[-4:], rel=1e-5)
    last = Blocks()
    fit(last, batch, steps=6, accumulate=2, **kept)
    for a, b in zip(alone.parameters(), last.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_chosen_trainer_is_over_the_callers(tmp_path):
    expected = fit(Regression(), batch, steps=3, accumulate=2).losses
    choose_trainer({"accumulate": 2})
    try:
        assert fit(Regression(), batch, steps=3).losses == expected
    finally:
        choose_trainer({})


def test_training_takes_place_where_the_module_lies_and_leaves_it_there(monkeypatch):
    """A stand-in for a second GPU: Lightning itself would leave the module on the CPU."""
    gpu, seen = torch.device("cuda", 1), []

    class OnGPU(Regression):
        def parameters(self, recurse=True):
            return iter([SimpleNamespace(device=gpu)])

    monkeypatch.setattr(OnGPU, "to", lambda module, device: seen.append(device))
    monkeypatch.setattr(module_of_fit, "_train", lambda module, loader, **o: seen.append(o))
    fit(OnGPU(), batch, steps=1)
    options, device = seen
    assert (options["accelerator"], options["devices"], device) == ("gpu", [1], gpu)


def test_training_in_other_processes_makes_its_folder(tmp_path, monkeypatch):
    @contextmanager
    def nobody(task, **places):
        raise Killed
        yield

    monkeypatch.setattr(module_of_fit, "companions", nobody)
    with pytest.raises(Killed):
        fit(Regression(), batch, steps=1, scratch=tmp_path / "new", strategy="fully_shard")


def test_a_companion_that_fails_ends_the_training():
    def broken(number: int):
        if number == 1:  # the second process's first batch
            raise Killed
        return batch(number)

    with pytest.raises(RuntimeError):
        fit(Regression(), broken, steps=4, devices=2, strategy="ddp")
    assert not multiprocessing.active_children()
    assert "RANK" not in os.environ


def test_schedule_rises_then_falls_to_its_final_ratio():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=2.0)
    schedule = cosine_with_warmup(optimizer, steps=10, warmup_steps=4, final_ratio=0.1)
    rates = []
    for _ in range(11):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert rates[10] == pytest.approx(0.2)
    assert rates[4:] == sorted(rates[4:], reverse=True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"accumulate": 0}, "accumulate"),
        ({"devices": "all"}, "devices"),
        ({"devices": 2, "strategy": "ddp_spawn"}, "strategy"),
    ],
)
def test_values_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        fit(Regression(), batch, **{"steps": 3, **options})
