"""SmolLM2 behind an endpoint that saves cost: Rotated Runtime Smooth, or Probe Pruning."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ritornello.common.data import text_windows
from ritornello.experiments.model_equality_testing.served import Served
from ritornello.methods.probe_pruning import ProbePruningConfig, prune_model
from ritornello.methods.rrs import RRSConfig, quantize_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Calibration:
    """Text that a compressed model is prepared with.

    Args:
        tokenizer, text: called when they are needed.
        windows: how many.
        tokens: of a window; pruning serves prompts up to that length.
        batch_size: windows that are run at a time.
    """

    tokenizer: Callable[[], Any]
    text: Callable[[], str]
    windows: int
    tokens: int
    batch_size: int

    def ids(self):
        """Token ids (windows, tokens) from random places of the text."""
        return text_windows(
            self.text(),
            self.tokenizer(),
            tokens=self.tokens,
            windows=self.windows,
            order="random",
            seed=0,
        )


@dataclass(frozen=True)
class Quantised(Served):
    """Rotated Runtime Smooth.

    Args:
        rrs: bits, rotation and smoothing.
        calibration: for GPTQ or SmoothQuant; None where `rrs` needs none.
    """

    rrs: RRSConfig = field(default_factory=lambda: RRSConfig(weight_method="rtn"))
    calibration: Calibration | None = None

    def prepare(self) -> None:
        super().prepare()
        if self.calibration is not None:
            self.calibration.ids()

    def load(self, reference: Callable[[], "PreTrainedModel"]) -> "PreTrainedModel":
        ids = None if self.calibration is None else self.calibration.ids()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the embeddings were tied")
            return quantize_model(super().load(reference), self.rrs, ids)


@dataclass(frozen=True)
class Pruned(Served):
    """Probe Pruning: heads and channels are chosen on the prompt and stay while it is answered.

    Args:
        pruning: ratio, probe and fusion.
        calibration: for the history.
    """

    pruning: ProbePruningConfig = field(default_factory=ProbePruningConfig)
    calibration: Calibration | None = None

    def prepare(self) -> None:
        super().prepare()
        if self.calibration is not None:
            self.calibration.ids()

    def load(self, reference: Callable[[], "PreTrainedModel"]) -> "PreTrainedModel":
        model = super().load(reference)
        pruned = prune_model(model, self.pruning)
        if self.pruning.reads_history:
            if self.calibration is None:
                raise ValueError("calibration is needed: the pruning reads a history")
            pruned.calibrate(
                self.calibration.ids().to(model.device).split(self.calibration.batch_size)
            )
        # the layers of the model itself prune from now on, whoever runs it
        return model
