"""Training: one loop with exact resume, schedules, seeding."""

from ritornello.common.training.fit import FitResult, choose_trainer, fit
from ritornello.common.training.schedule import cosine_with_warmup

__all__ = ["FitResult", "choose_trainer", "cosine_with_warmup", "fit"]
