"""Training with parameters, gradients and optimiser state divided among the processes."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map


class FullyShard(ModelParallelStrategy):
    """Lightning's strategy for torch's `fully_shard`, on GPUs (NCCL) and on CPUs (gloo).

    Each block of a model (a member of an outermost `ModuleList`) is gathered for its own forward
    and backward pass, and for the methods that its `forward_methods` names; what lies outside the
    blocks is one more group.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(
            data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False
        )

    def setup(self, trainer: Trainer) -> None:
        module = self.lightning_module
        assert isinstance(module, LightningModule)
        # Lightning leaves the division to this hook of the module.
        module.configure_model = lambda: None  # type: ignore[method-assign]
        module.to(self.root_device)
        tags = {name: _tags(p) for name, p in module.named_parameters()}
        mesh = self.device_mesh["data_parallel"]
        for block in _blocks(module):
            fully_shard(block, mesh=mesh)
            for name in getattr(block, "forward_methods", ()):
                register_fsdp_forward_method(block, name)
        fully_shard(module, mesh=mesh)
        register_fsdp_forward_method(module, "training_step")
        for name, parameter in module.named_parameters():  # new objects: what a method tagged stays
            vars(parameter).update(tags[name])
        super().setup(trainer)

    def model_to_device(self) -> None:
        """Does nothing: it was moved before its division; a second move makes new parameters."""


def _tags(parameter: nn.Parameter) -> dict[str, Any]:
    return {key: value for key, value in vars(parameter).items() if not key.startswith("__")}


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)


def gathered(state: Any) -> Any:
    """A state with whole tensors; every process must call it."""
    return tree_map(lambda v: v.full_tensor().cpu() if isinstance(v, DTensor) else v, state)


def placed(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimiser's state with its tensors divided as the parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def place(parameter: Tensor, value: Any) -> Any:
        if not isinstance(parameter, DTensor) or getattr(value, "shape", None) != parameter.shape:
            return value
        mesh, placements = parameter.device_mesh, parameter.placements
        return distribute_tensor(value.to(parameter.device), mesh, placements)

    of_parameter = {
        number: {name: place(parameters[number], value) for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    return {**state, "state": of_parameter}
