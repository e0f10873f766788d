"""A small experiment that tests run in worker processes; its module is put on the path by them."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ritornello.common.runs import Cell, Experiment, Measurement, Part, Plan, UserError


@dataclass
class Draws(Experiment):
    """Each cell draws numbers from its seed; `trap` names a file that changes what happens."""

    pause: float = 0.0
    trap: str = ""

    def prepare(self) -> None:
        if self.trap == "unprepared":
            raise UserError("the data set is not there")

    def measure(self, arm, cell: Cell, context):
        time.sleep(self.pause)
        trap = Path(self.trap) if self.trap else None
        if trap is not None and trap.exists() and cell.arm == "shifted":
            kind = trap.read_text()
            if kind == "raise":
                raise RuntimeError("a bug in this arm")
            if kind == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        g = torch.Generator().manual_seed(cell.seed + int(cell.coordinates["bits"]))
        samples = (torch.randn(20, generator=g) + arm).tolist()
        context.log(0, loss=samples[0])
        yield Measurement("score", sum(samples) / 20, samples=samples)


def build(config) -> Plan:
    part = Part(
        Draws(config.get("pause", 0.0), config.get("trap", "")),
        arms={"plain": 0.0, "shifted": 2.0},
        seeds=config.get("seeds", [0, 1, 2]),
        grid={"bits": [4, 8]},
    )
    return Plan("toy", "small", {"draws": part})
