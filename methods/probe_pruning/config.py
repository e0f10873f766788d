"""What is pruned, how it is chosen, and the checks of both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Method = Literal["probe", "static", "full_batch", "dense"]
Score = Literal["ppsp", "wanda_sp", "flap"]
Fusion = Literal["importance", "fixed", "none"]
Axis = Literal["tokens", "samples"]


@dataclass(frozen=True)
class ProbePruningConfig:
    """One arm: Probe Pruning, an ablation of it, or a baseline.

    Attributes:
        ratio: share of heads and channels to remove over all layers, in [0, 1).
        skip_layers: layers that stay dense; the others are pruned the more (`effective_ratio`).
        probe_ratios: share of tokens and of samples that form the probe; an axis left out of
            `order` stays whole.
        order: which axis is ranked first.
        score: PPsp (section 3), Wanda-sp or FLAP.
        fusion: of probe and history: by `importance`, with a `fixed` weight, or `none`.
        fixed_weight: weight of the probe under `fixed`.
        momentum: of the history's moving average.
        multiple: the number of kept channels is a multiple of it.
        method: `probe` (this paper), `static` (chosen once, from the calibration history),
            `full_batch` (the whole batch is the probe, no history) or `dense`.
        update_history: whether the history follows what is served.
        parallel: PP-Parallel: probe the residual of the previous block, on a second CUDA stream.
        bias_compensation: FLAP's constant in place of what was removed; static only.
        per_layer_ratios: None for the same ratio everywhere, `flap` for FLAP's global ranking, or
            {layer: (head ratio, channel ratio)}; static only.
        legacy_fixed_mlp: the published code's `fixed` fusion: in MLP blocks the weight goes to the
            history instead.
        legacy_flap: the published code's fluctuations: the first calibration batch is left out and
            batch means are divided by the batch size once more.
    """

    ratio: float = 0.4
    skip_layers: tuple[int, ...] = (0, 1, 2)
    probe_ratios: Mapping[Axis, float] = field(
        default_factory=lambda: {"tokens": 0.5, "samples": 0.05}
    )
    order: tuple[Axis, ...] = ("tokens", "samples")
    score: Score = "ppsp"
    fusion: Fusion = "importance"
    fixed_weight: float = 0.5
    momentum: float = 0.99
    multiple: int = 64
    method: Method = "probe"
    update_history: bool = True
    parallel: bool = False
    bias_compensation: bool = False
    per_layer_ratios: Any = None
    legacy_fixed_mlp: bool = False
    legacy_flap: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_layers", tuple(sorted(set(self.skip_layers))))
        object.__setattr__(self, "order", tuple(self.order))
        object.__setattr__(self, "probe_ratios", dict(self.probe_ratios))
        for name, choices in (("method", Method), ("score", Score), ("fusion", Fusion)):
            check_choice(name, getattr(self, name), get_args(choices))
        if not 0 <= self.ratio < 1:
            raise ValueError(f"ratio must be in [0, 1), got {self.ratio}")
        check_probe(self.probe_ratios, self.order)
        for name in ("fixed_weight", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, got {self.multiple}")
        self._check_static_options()

    def _check_static_options(self) -> None:
        ratios = self.per_layer_ratios
        if isinstance(ratios, str):
            check_choice("per_layer_ratios", ratios, ("flap",))
        elif ratios is not None:
            plain = {int(layer): (float(a), float(b)) for layer, (a, b) in dict(ratios).items()}
            if any(not 0 <= r <= 1 for pair in plain.values() for r in pair):
                raise ValueError(f"per_layer_ratios must lie in [0, 1], got {plain}")
            object.__setattr__(self, "per_layer_ratios", plain)
        for name in ("bias_compensation", "per_layer_ratios"):
            if getattr(self, name) and self.method != "static":
                raise ValueError(f"{name} needs method='static', got method={self.method!r}")

    @property
    def reads_history(self) -> bool:
        """Whether serving needs calibration first."""
        return self.method == "static" or (self.method == "probe" and self.fusion != "none")

    @property
    def updates_history(self) -> bool:
        """Whether serving changes the history."""
        return self.method == "probe" and self.fusion != "none" and self.update_history


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_probe(ratios: Mapping[Axis, float], order: tuple[Axis, ...]) -> None:
    """Raises ValueError unless each ranked axis is known, named once, with a ratio in (0, 1]."""
    if len(set(order)) != len(order):
        raise ValueError(f"order must name an axis at most once, got {order}")
    for axis in (*order, *ratios):
        check_choice("order and probe_ratios: axis", axis, get_args(Axis))
    for axis in order:
        if axis not in ratios:
            raise ValueError(f"probe_ratios must have a ratio for {axis!r} of order={order}")
    for axis, ratio in ratios.items():
        if not 0 < ratio <= 1:
            raise ValueError(f"probe_ratios[{axis!r}] must be in (0, 1], got {ratio}")
