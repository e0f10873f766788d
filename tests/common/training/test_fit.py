"""A training that is interrupted goes on to the same loss curve."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from ritornello.common.training import cosine_with_warmup, fit

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


def test_two_processes_take_the_steps_of_one(tmp_path):
    """DDP over gloo equals one process that accumulates, and checkpoints move between them."""
    two = {"devices": 2, "strategy": "ddp_spawn"}
    alone, together, moved = Regression(), Regression(), Regression()
    expected = fit(alone, batch, steps=6, accumulate=2).losses
    pairs = [(a + b) / 2 for a, b in zip(expected[::2], expected[1::2], strict=True)]
    result = fit(together, batch, steps=6, **two)
    assert result.losses == pytest.approx(pairs, rel=1e-5)
    fit(moved, batch, steps=4, scratch=tmp_path, checkpoint_every=2, **two)
    resumed = fit(moved, batch, steps=6, scratch=tmp_path, checkpoint_every=2, accumulate=2)
    assert resumed.resumed_from == 4
    for a, b, c in zip(alone.parameters(), together.parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)


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
    ("options", "named"), [({"steps": 0}, "steps"), ({"accumulate": 0}, "accumulate")]
)
def test_values_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        fit(Regression(), batch, **{"steps": 3, **options})
