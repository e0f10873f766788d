"""Turns a model into its unit-scaled form and says what was changed and what was not."""

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from ritornello.methods.umup import functional as U
from ritornello.methods.umup import modules
from ritornello.methods.umup.parameter import MupModule


@dataclass
class Report:
    """What `unit_scale` did.

    Attributes:
        changed: one line for each replacement.
        unmapped: one line for everything without a unit-scaled form, left as it was.
    """

    changed: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        left = self.unmapped or ["nothing"]
        return "\n".join(["changed:", *self.changed, "left as it was:", *left])


def unit_scale(
    model: nn.Module, *, generator: torch.Generator | None = None
) -> tuple[nn.Module, Report]:
    """A unit-scaled copy of a model, with new N(0, 1) weights, and a report.

    A transformers Llama becomes a `UmupLlamaForCausalLM`. In other models modules are replaced by
    type, the last linear layer becomes the readout, norms lose their gain, and, where torch.fx can
    trace the code, functions become unit-scaled and residual sums become `residual_split` and
    `residual_add` whose branches share the variance equally. Nothing is skipped silently.

    Args:
        model: the model; it is not changed.
        generator: source of the new weights.
    """
    report = Report()
    if getattr(getattr(model, "config", None), "model_type", None) == "llama":
        return _convert_llama(model, report), report
    converted = copy.deepcopy(model)
    linears = [name for name, m in converted.named_modules() if isinstance(m, nn.Linear)]
    for name, module in list(converted.named_modules()):
        replacement = _replacement(module, name == (linears or [None])[-1], generator)
        if replacement is not None:
            if not name:
                return replacement, _note(report, f"model: {type(module).__name__}")
            parent, _, child = name.rpartition(".")
            setattr(converted.get_submodule(parent), child, replacement)
            report.changed.append(
                f"{name}: {type(module).__name__} -> {type(replacement).__name__}"
            )
        elif any(True for _ in module.parameters(recurse=False)):
            report.unmapped.append(f"{name or 'model'}: parameters of {type(module).__name__}")
    return _convert_functions(converted, report), report


def _note(report: Report, line: str) -> Report:
    report.changed.append(line)
    return report


def _convert_llama(model: nn.Module, report: Report) -> nn.Module:
    from ritornello.methods.umup.hf import UmupLlamaForCausalLM

    config: Any = copy.deepcopy(model.config)
    if config.tie_word_embeddings:
        config.tie_word_embeddings = False
        report.changed.append("config.tie_word_embeddings: True -> False")
    converted = UmupLlamaForCausalLM(config)
    report.changed.append(f"model: {type(model).__name__} -> UmupLlamaForCausalLM, new weights")
    return converted


def _replacement(
    module: nn.Module, is_readout: bool, generator: torch.Generator | None
) -> nn.Module | None:
    """The unit-scaled module for a plain one, None where there is none."""
    match module:
        case nn.Linear():
            kind = modules.LinearReadout if is_readout else modules.Linear
            bias = module.bias is not None
            return kind(module.in_features, module.out_features, bias, generator=generator)
        case nn.Embedding() if module.padding_idx is None and module.max_norm is None:
            sizes = module.num_embeddings, module.embedding_dim
            return modules.Embedding(*sizes, generator=generator)
        case nn.Conv1d() if isinstance(module.padding, tuple):
            return modules.Conv1d(
                module.in_channels, module.out_channels, module.kernel_size[0], module.stride[0],
                module.padding[0], module.dilation[0], module.groups, module.bias is not None,
                module.padding_mode, generator=generator,
            )  # fmt: skip
        case nn.LayerNorm() if len(module.normalized_shape) == 1:
            return modules.LayerNorm(module.normalized_shape[0], eps=module.eps)
        case nn.RMSNorm() if len(module.normalized_shape) == 1:
            eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
            return modules.RMSNorm(module.normalized_shape[0], eps=eps)
        case nn.GELU():
            return modules.GELU(module.approximate)
        case nn.SiLU():
            return modules.SiLU()
        case nn.Softmax() if module.dim is not None:
            return modules.Softmax(module.dim)
        case nn.Dropout():
            return modules.Dropout(module.p)
    return None


_FUNCTIONS: dict[Callable, Callable] = {
    F.gelu: U.gelu,
    F.silu: U.silu,
    F.softmax: U.softmax,
    torch.softmax: U.softmax,
    F.scaled_dot_product_attention: U.scaled_dot_product_attention,
    torch.matmul: U.matmul,
    operator.matmul: U.matmul,
    F.cross_entropy: U.cross_entropy,
    F.mse_loss: U.mse_loss,
}
_ADDS = (operator.add, operator.iadd, torch.add)
# Shapes and copies: they move values about and leave their scale alone.
_NEUTRAL = (
    operator.getitem, getattr, torch.cat, torch.stack, torch.chunk, torch.split, torch.transpose,
    torch.permute, torch.flatten, torch.reshape, torch.unsqueeze, torch.squeeze, torch.arange,
)  # fmt: skip
_NEUTRAL_METHODS = (
    "view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "chunk",
    "split", "size", "unsqueeze", "squeeze", "expand", "to", "float", "dim",
)  # fmt: skip


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        return isinstance(m, MupModule) or super().is_leaf_module(m, name) or _own(m)


def _own(module: nn.Module) -> bool:
    return type(module).__module__ == modules.__name__


def _convert_functions(model: nn.Module, report: Report) -> nn.Module:
    """Rewrites traced code; the model as it is, with a line in the report, where it has none."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # fx raises whatever the traced code raises on a proxy
        report.unmapped.append(f"model: functions and residual sums, not traceable ({error})")
        return model
    residuals = []
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _ADDS:
            pair = _residual(node)
            if pair is not None:
                residuals.append((node, *pair))
            elif all(isinstance(argument, fx.Node) for argument in node.args[:2]):
                _retarget(node, U.add, report)
        elif node.op == "call_function" and node.target in _FUNCTIONS:
            _retarget(node, _FUNCTIONS[node.target], report)
        elif node.op == "call_function" and node.target not in _NEUTRAL:
            report.unmapped.append(f"{node.name}: function {_name(node.target)}")
        elif node.op == "call_method" and node.target not in _NEUTRAL_METHODS:
            report.unmapped.append(f"{node.name}: method {node.target}")
    for index, (node, skip, branch) in enumerate(residuals):
        # Every branch and half the embedding have the same variance, as in a transformer of
        # len(residuals) / 2 layers with all multipliers 1.
        tau = (len(residuals) / 2 + index) ** -0.5
        _split(graph, node, skip, branch, tau)
        report.changed.append(f"{node.name}: residual sum, tau {tau:.4f}")
    graph.lint()
    return fx.GraphModule(model, graph)


def _retarget(node: fx.Node, target: Callable, report: Report) -> None:
    report.changed.append(f"{node.name}: {_name(node.target)} -> {_name(target)}")
    node.target = target


def _name(target: Any) -> str:
    return getattr(target, "__name__", str(target))


def _ancestors(node: fx.Node) -> Iterator[fx.Node]:
    seen, stack = set(), list(node.all_input_nodes)
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            yield current
            stack.extend(current.all_input_nodes)


def _residual(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(skip, branch) of a sum whose one operand is computed from the other."""
    if len(node.args) < 2:
        return None
    left, right = node.args[:2]
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    if left in _ancestors(right):
        return left, right
    return (right, left) if right in _ancestors(left) else None


def _split(graph: fx.Graph, node: fx.Node, skip: fx.Node, branch: fx.Node, tau: float) -> None:
    """Splits `skip` before the branch's first use of it and replaces the sum."""
    inside = {branch, *_ancestors(branch)}
    users = [user for user in skip.users if user in inside]
    with graph.inserting_after(skip):
        both = graph.call_function(U.residual_split, (skip, tau))
    with graph.inserting_after(both):
        kept = graph.call_function(operator.getitem, (both, 1))
        entered = graph.call_function(operator.getitem, (both, 0))
    for user in users:
        user.replace_input_with(skip, entered)
    # The sum itself stays in place, so that later sums find it by its node.
    node.target, node.args, node.kwargs = U.residual_add, (branch, kept, tau), {}
