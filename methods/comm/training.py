"""The optimiser's groups, and a LightningModule around CoMM or a baseline."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from ritornello.methods.comm.baselines import Augment
from ritornello.methods.comm.loss import LossOutput

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


class Trainable(Protocol):
    """What CoMM and all baselines offer."""

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput: ...

    def features(self, inputs: Sequence[Any]) -> dict[str, Tensor]: ...


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices alone: not for biases, norms, vectors and scalars (sec. B)."""
    spared = {
        id(p) for m in model.modules() if isinstance(m, _NORMS) for p in m.parameters(recurse=False)
    }
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = name.rsplit(".", 1)[-1].startswith("bias")
        free = parameter.ndim < 2 or is_bias or id(parameter) in spared
        (plain if free else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def lightning_module(
    model: nn.Module,
    *,
    augment: Augment,
    lr: float,
    weight_decay: float = 0.0,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    watch: Callable[[int, LossOutput], None] | None = None,
) -> "LightningModule":
    """AdamW training of a model with `training_loss`.

    A batch is (inputs, labels): a list of modalities, and labels or None.

    Args:
        augment: of a list of modalities; drawn from torch's global generator where it has none of
            its own, which `common.training.fit` seeds for every batch.
        schedule: makes a learning-rate scheduler, stepped once a step.
        watch: called with the step and the loss of each batch.
    """
    from lightning.pytorch import LightningModule

    class Contrastive(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            # in a buffer, so that a resumed run goes on counting
            self.register_buffer("step_number", torch.zeros((), dtype=torch.long))

        def training_step(self, batch: tuple[list[Any], Tensor | None], batch_idx: int) -> Tensor:
            inputs, labels = batch
            output = self.model.training_loss(inputs, augment, labels)  # type: ignore[operator]
            if watch is not None:
                watch(int(self.step_number), output)
            self.step_number += 1
            return output.loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(
                parameter_groups(self.model, weight_decay), lr=lr, fused=True
            )
            if schedule is None:
                return optimizer
            config = {"scheduler": schedule(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": config}

    return Contrastive()
