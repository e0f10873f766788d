"""The run directory: cells, atomic records, resume, locks, provenance."""

from ritornello.common.errors import UserError
from ritornello.common.runs.experiment import Cell, CellContext, Experiment, Measurement
from ritornello.common.runs.plan import Part, Plan
from ritornello.common.runs.runner import Outcome, run
from ritornello.common.runs.store import RunDirectory, RunLockedError

__all__ = [
    "Cell",
    "CellContext",
    "Experiment",
    "Measurement",
    "Outcome",
    "Part",
    "Plan",
    "RunDirectory",
    "RunLockedError",
    "UserError",
    "run",
]
