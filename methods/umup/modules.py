"""Unit-scaled modules under torch's names, with weights drawn from N(0, 1) (sec. 4)."""

import warnings
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.umup import functional as U
from ritornello.methods.umup.functional.activations import EPS
from ritornello.methods.umup.functional.projections import linear_scales
from ritornello.methods.umup.parameter import MupModule, MupType, Parameter, is_tagged
from ritornello.methods.umup.scale import Constraint


def _normal(*shape: int, generator: torch.Generator | None, **factory) -> Tensor:
    return torch.randn(*shape, generator=generator, **factory)


class Projection(MupModule):
    """A matrix product with `weight`, whose operands and gradient may be cast to FP8.

    Subclasses give `project`; `cast` and `critical` are set by `fp8.Fp8Cast.attach`.
    """

    weight: nn.Parameter
    cast: Callable[["Projection", Tensor], Tensor] | None = None
    critical: bool = False

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product without any cast."""
        raise TypeError(f"{type(self).__name__} must define project")

    def multipliers(self, rows: int) -> tuple[float, float, float]:
        """Multipliers of output, input gradient and weight gradient, for `rows` rows."""
        raise TypeError(f"{type(self).__name__} must define multipliers")

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The product, through the attached cast if there is one."""
        return self.project(x, self.weight) if self.cast is None else self.cast(self, x)


class Linear(Projection):
    """`functional.linear` with its weight; no bias unless asked for.

    Args:
        in_features: inputs.
        out_features: outputs.
        bias: add a bias, which starts at zero.
        constraint: see `functional.linear`.
        mirrored: a sibling undoes what constraint=None does to the gradient, as the projections
            into and out of a feed-forward network do for each other; silences the warning of
            `DepthModuleList`.
        generator: source of the initial weights.
        **factory: device and dtype.
    """

    mup_type: MupType = "weight"
    constraint: Constraint | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        constraint: Constraint | None = "to_output_scale",
        mirrored: bool = False,
        generator: torch.Generator | None = None,
        **factory,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.constraint, self.mirrored = constraint, mirrored
        weight = _normal(out_features, in_features, generator=generator, **factory)
        self.weight = Parameter(weight, self.mup_type)
        self.bias = Parameter(torch.zeros(out_features, **factory), "bias") if bias else None

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        return U.linear(x, weight, self.bias, constraint=self.constraint)

    def multipliers(self, rows: int) -> tuple[float, float, float]:
        readout = self.mup_type == "output"
        return *linear_scales(self.weight, self.constraint, readout=readout), rows**-0.5

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, constraint={self.constraint}"


class LinearReadout(Linear):
    """`functional.linear_readout`: the projection to the logits, of type "output"."""

    mup_type = "output"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        constraint: Constraint | None = None,
        generator: torch.Generator | None = None,
        **factory,
    ) -> None:
        super().__init__(
            in_features, out_features, bias, constraint=constraint, generator=generator, **factory
        )

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        return U.linear_readout(x, weight, self.bias, constraint=self.constraint)


class Conv1d(MupModule):
    """`functional.conv1d` with its weight; the arguments are those of `nn.Conv1d`."""

    constraint: Constraint | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        *,
        constraint: Constraint | None = "to_output_scale",
        generator: torch.Generator | None = None,
        **factory,
    ) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"in_channels and out_channels must be multiples of groups={groups}, "
                f"got {in_channels} and {out_channels}"
            )
        modes = ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise ValueError(f"padding_mode must be one of {modes}, got {padding_mode!r}")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.padding_mode, self.constraint = padding_mode, constraint
        shape = (out_channels, in_channels // groups, kernel_size)
        self.weight = Parameter(_normal(*shape, generator=generator, **factory), "weight")
        self.bias = Parameter(torch.zeros(out_channels, **factory), "bias") if bias else None

    def forward(
        self, x: Float[Tensor, "*batch channels length"]
    ) -> Float[Tensor, "*batch out_channels out_length"]:
        """Pads by `padding_mode` and convolves."""
        padding = self.padding
        if padding and self.padding_mode != "zeros":
            x, padding = F.pad(x, (padding, padding), mode=self.padding_mode), 0
        return U.conv1d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
            constraint=self.constraint,
        )


class Embedding(MupModule):
    """`functional.embedding` with its table, whose learning rate goes as dim^-1/2."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        generator: torch.Generator | None = None,
        **factory,
    ) -> None:
        super().__init__()
        table = _normal(num_embeddings, embedding_dim, generator=generator, **factory)
        self.weight = Parameter(table, "weight")

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        """Rows of the table."""
        return U.embedding(ids, self.weight)


class RMSNorm(MupModule):
    """`functional.rms_norm`, without a trainable gain unless asked for (sec. 4.2)."""

    def __init__(
        self, dim: int, *, eps: float = EPS, elementwise_affine: bool = False, **factory
    ) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        gain = elementwise_affine
        self.weight = Parameter(torch.ones(dim, **factory), "norm") if gain else None

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Normalises over the last axis."""
        return U.rms_norm(x, self.weight, eps=self.eps)


class LayerNorm(RMSNorm):
    """`functional.layer_norm`, without trainable gain and bias unless asked for."""

    def __init__(
        self, dim: int, *, eps: float = EPS, elementwise_affine: bool = False, **factory
    ) -> None:
        super().__init__(dim, eps=eps, elementwise_affine=elementwise_affine, **factory)
        gain = elementwise_affine
        self.bias = Parameter(torch.zeros(dim, **factory), "bias") if gain else None

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Normalises over the last axis."""
        return U.layer_norm(x, self.weight, self.bias, eps=self.eps)


class GELU(nn.Module):
    """`functional.gelu`."""

    def __init__(self, approximate: str = "none", *, mult: float = 1.0) -> None:
        super().__init__()
        self.approximate, self.mult = approximate, mult

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Elementwise, in the shape of `x`."""
        return U.gelu(x, mult=self.mult, approximate=self.approximate)


class SiLU(nn.Module):
    """`functional.silu`."""

    def __init__(self, *, mult: float = 1.0) -> None:
        super().__init__()
        self.mult = mult

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Elementwise, in the shape of `x`."""
        return U.silu(x, mult=self.mult)


class Softmax(nn.Module):
    """`functional.softmax`."""

    def __init__(self, dim: int = -1, *, mult: float = 1.0) -> None:
        super().__init__()
        self.dim, self.mult = dim, mult

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Along `dim`, in the shape of `x`."""
        return U.softmax(x, self.dim, mult=self.mult)


class Dropout(nn.Module):
    """`functional.dropout`; off outside training."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be in [0, 1), got {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Drops in training; the identity otherwise."""
        return U.dropout(x, self.p, training=self.training)


class DepthModuleList(nn.ModuleList):
    """The layers of one residual stack: their learning rates get (number of layers)^-1/2.

    Raises:
        ValueError: if a parameter inside is untagged or already belongs to such a stack, or if
            layers are added later.
    """

    depth: int

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        layers = list(layers)
        super().__init__(layers)
        _set_depth(self, len(layers))

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Refuses: the depth is fixed."""
        _refuse_growth(self)
        super().add_module(name, module)


class DepthSequential(nn.Sequential):
    """`nn.Sequential` with the depth rule of `DepthModuleList`."""

    depth: int

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        _set_depth(self, len(layers))

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Refuses: the depth is fixed."""
        _refuse_growth(self)
        super().add_module(name, module)


def _refuse_growth(stack: nn.Module) -> None:
    if getattr(stack, "depth", None) is not None:
        raise ValueError(
            f"{type(stack).__name__} is fixed at depth {stack.depth}, which sets learning rates: "
            "build it with all its layers"
        )


def _set_depth(stack: DepthModuleList | DepthSequential, depth: int) -> None:
    for name, parameter in stack.named_parameters():
        if not is_tagged(parameter):
            raise ValueError(
                f"parameter {name} of shape {tuple(parameter.shape)} has no mup_type: make it with "
                "umup.Parameter"
            )
        if parameter.mup_scaling_depth is not None:
            raise ValueError(f"parameter {name} is in a residual stack already: stacks do not nest")
        parameter.mup_scaling_depth = depth
    for name, module in stack.named_modules():
        if isinstance(module, Linear) and module.constraint is None and not module.mirrored:
            warnings.warn(
                f"{name} inside a residual branch has constraint=None: its gradients are wrong by "
                "more than a constant unless a sibling mirrors it (then pass mirrored=True)",
                stacklevel=3,
            )
    stack.depth = depth
