"""Learning-rate schedules as factors of the peak rate."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def cosine_with_warmup(
    optimizer: Optimizer, *, steps: int, warmup_steps: int = 0, final_ratio: float = 0.0
) -> LambdaLR:
    """Linear warm-up, then a cosine from the peak to `final_ratio` of it at `steps`.

    Raises:
        ValueError: warmup_steps outside [0, steps], or final_ratio outside [0, 1].
    """
    if not 0 <= warmup_steps <= steps:
        raise ValueError(f"warmup_steps must be in [0, steps={steps}], got {warmup_steps}")
    if not 0 <= final_ratio <= 1:
        raise ValueError(f"final_ratio must be in [0, 1], got {final_ratio}")

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return final_ratio + (1 - final_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

    return LambdaLR(optimizer, factor)
