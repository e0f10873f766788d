"""The visual front-end for inference: norms folded into convolutions, and those in fewer sums."""

import ctypes

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ritornello.common.kernels.compiled import build_obstacle, load_library
from ritornello.common.kernels.dispatch import choose_backend, device_obstacle
from ritornello.methods.cav2vec.frontend import BasicBlock, VideoFrontend

SOURCE = (__package__, "winograd.cpp")
_PLACES = 25  # of a tile


def _call(name: str, tensors: tuple[Tensor | None, ...], *sizes: int) -> None:
    function = getattr(load_library(*SOURCE), name)
    function.restype = None
    pointers = (ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors)
    function(*pointers, *(ctypes.c_int64(n) for n in sizes))


def _fold(convolution: nn.Module, norm: nn.Module) -> nn.Conv2d | nn.Conv3d:
    assert isinstance(convolution, nn.Conv2d | nn.Conv3d)
    assert isinstance(norm, nn.BatchNorm2d)
    return fuse_conv_bn_eval(convolution, norm)


class FoldedConv(nn.Module):
    """A 3×3 convolution, the batch norm after it, a shortcut and PReLU, in one step.

    Two ways: "compiled", Winograd's filtering in C++ for float32 on a CPU at stride 1, whose sums
    differ by rounding (about 1e-5 of the largest), and "torch". The weights are those of the moment
    of folding, no parameters. All parts are in eval mode.

    Args:
        backend: "compiled" or "torch"; the fastest when absent.
    """

    weight: Tensor
    bias: Tensor
    slope: Tensor

    def __init__(
        self,
        convolution: nn.Conv2d,
        norm: nn.BatchNorm2d,
        relu: nn.PReLU,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.backend, self.stride = backend, convolution.stride
        fused = _fold(convolution, norm)
        assert fused.bias is not None
        for name, value in (("weight", fused.weight), ("bias", fused.bias), ("slope", relu.weight)):
            self.register_buffer(name, value.detach().clone(), persistent=False)
        self.packed: Tensor | None = None  # on the CPU; made when it is first needed

    def _obstacle(self, x: Tensor) -> str | None:
        """Why the compiled way cannot take this input; None when it can."""
        if obstacle := device_obstacle(x.device, "cpu"):
            return obstacle
        if self.stride != (1, 1):
            return f"it needs a stride of 1, got {self.stride}"
        if torch.compiler.is_compiling():
            return "torch.compile does not see into it"
        if x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return f"it needs float32 without autocast, got {x.dtype}"
        if torch.is_grad_enabled() and x.requires_grad:
            return "it has no gradient"
        if obstacle := build_obstacle(*SOURCE):
            return obstacle
        columns = load_library(*SOURCE).columns()
        if any(channels % columns for channels in self.weight.shape[:2]):
            return f"it needs multiples of {columns} channels, got {tuple(self.weight.shape[:2])}"
        return None

    def forward(
        self, x: Float[Tensor, "n c h w"], shortcut: Float[Tensor, "n d h w"] | None = None
    ) -> Float[Tensor, "n d h w"]:
        """PReLU of the normalised convolution of `x` and the shortcut, if there is one."""
        available = {"compiled": self._obstacle(x), "torch": None}
        if choose_backend("convolution", self.backend, available, x.device) == "compiled":
            return self._winograd(x, shortcut)
        y = F.conv2d(x, self.weight, self.bias, self.stride, padding=1)
        return F.prelu(y if shortcut is None else y + shortcut, self.slope)

    def _winograd(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        channels, inputs = self.weight.shape[:2]
        if self.packed is None:
            self.packed = self.weight.new_empty(_PLACES * channels * inputs)
            _call("pack", (self.weight.contiguous(), self.packed), channels, inputs)
        layout = torch.channels_last
        x = x.contiguous(memory_format=layout)
        shortcut = None if shortcut is None else shortcut.contiguous(memory_format=layout)
        n, _, height, width = x.shape
        y = torch.empty((n, channels, height, width), memory_format=layout)
        tensors = (x, self.packed, self.bias, self.slope, shortcut, y)
        sizes = (n, height, width, inputs, channels, torch.get_num_threads())
        _call("convolve", tensors, *sizes)
        return y


class FoldedBlock(nn.Module):
    """`BasicBlock` for inference."""

    def __init__(self, block: BasicBlock) -> None:
        super().__init__()
        self.conv1 = FoldedConv(block.conv1, block.bn1, block.relu1)
        self.conv2 = FoldedConv(block.conv2, block.bn2, block.relu2)
        self.downsample = None
        if block.downsample is not None:
            self.downsample = _fold(*block.downsample)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        """Two convolutions and the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.conv2(self.conv1(x), shortcut)


def fold_batch_norm(frontend: VideoFrontend) -> None:
    """Makes a front-end faster, in place, for inference only: the values stay, but for rounding.

    Every batch norm goes into its convolution; on a CPU the convolutions run as `FoldedConv` says.
    The blocks' weights are not in the state dict afterwards.

    Raises:
        ValueError: the front-end is in training mode.
    """
    if frontend.training:
        raise ValueError("frontend must be in eval mode before its statistics can be folded in")
    stem = frontend.resnet.frontend3D
    if isinstance(stem[1], nn.Identity):
        return
    convolution, norm, relu, pool = stem
    assert isinstance(relu, nn.PReLU)
    stem[0], stem[1] = _fold(convolution, norm), nn.Identity()
    if bool((relu.weight >= 0).all()):  # then PReLU never falls, and commutes with the maximum
        stem[2], stem[3] = pool, relu
    for stage in frontend.resnet.trunk.children():
        assert isinstance(stage, nn.Sequential)
        for i, block in enumerate(stage):
            assert isinstance(block, BasicBlock)
            stage[i] = FoldedBlock(block)
