"""Every Triton kernel compiles for real GPUs, none needed: types, shared memory, registers.

Triton's interpreter checks values but not what only the compiler knows. This module runs itself in
a process of its own, where launches only compile (`warmup`) for a named compute capability.
"""

# Triton declares less than it does.
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SHARED_MEMORY = 99 * 1024  # bytes a block may have on compute capability 8.6 and 8.9, the smallest
SPILLS = 256  # bytes a thread may keep outside its registers


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("capability", ["80", "90"])
def test_kernels_compile_and_fit(capability, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__, capability],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.startswith("skip:"):
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert len({name for name, *_ in kernels}) == 9
    for name, shared, spills, tensor_cores in kernels:
        assert int(shared) <= SHARED_MEMORY, name
        assert int(spills) <= SPILLS, name
        if name == "_matmul_kernel":
            assert tensor_cores == "s8"


def launch_all() -> None:
    from ritornello.common.kernels.block_gemm import triton as block_gemm
    from ritornello.common.kernels.gather_gemm import triton as gather_gemm
    from ritornello.common.kernels.hadamard import triton as hadamard
    from ritornello.common.kernels.quantize import triton as quantize
    from ritornello.common.kernels.selective_scan import triton as selective_scan

    q, order = torch.zeros(1, 256, 256, dtype=torch.int8), torch.zeros(1, 256, dtype=torch.int64)
    int8 = torch.zeros(64, 256, dtype=torch.int8)
    int4 = torch.zeros(64, 128, dtype=torch.uint8)
    for weight in (int8, int4):
        for tokens in (1, 256):
            operands = q[:, :tokens], weight, order, torch.ones(1, 2), torch.ones(1, tokens)
            block_gemm.block_scaled_matmul(*operands, torch.ones(64), 128)
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.zeros(512, 256, dtype=dtype)
        for rows in (4, 256):
            gather_gemm.linear(weight[:rows], weight, torch.arange(128))
            gather_gemm.combine(weight[:rows, :128], weight, torch.arange(128))
    # Widths of SmolLM2, Llama 7B, 8B and 70B, with bases and without, and a large power of two.
    for n in (576, 1536, 4096, 8192, 11008, 14336, 28672, 65536):
        x = torch.zeros(2, 4, n, dtype=torch.bfloat16)
        order, scale = torch.zeros(2, n, dtype=torch.int64), torch.ones(2, n // 32)
        hadamard.transform(x, 1.0, transpose=False)
        quantize.rotate_smooth_quantize(x, order, scale, 32, 7, 1.0)
    quantize.channel_absmax(x, torch.ones(2, 4, dtype=torch.bool), normalize_tokens=True)
    quantize.channel_absmax(x, None, normalize_tokens=False)
    quantize.smooth_quantize(x, order, scale, 32, 7, 1.0)
    for states in (1, 16, 64, 128):
        u, B, A = torch.zeros(1, 64, 40), torch.zeros(1, 1, states, 40), torch.zeros(64, states)
        h = torch.zeros(1, 64, states)
        _, last, starts = selective_scan.forward(u, u, A, B, B, h, 16)
        selective_scan.backward(u, last, u, u, A, B, B, starts, 16)


def compile_launches(capability: str) -> None:
    """Prints name, shared bytes, spilled bytes and kind of tensor cores of what is launched."""
    try:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import get_ptxas
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction
    except ImportError as error:
        print(f"skip: this Triton has no compiler for a GPU that is absent: {error}")
        return

    class AbsentGPU:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", int(capability), 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device=None: 0)

    launch = JITFunction.run

    def compile_only(function, *arguments, grid, warmup, **options):
        del warmup
        kernel = launch(function, *arguments, grid=grid, warmup=True, **options)
        ptx = kernel.asm["ptx"]
        source = Path(os.environ["TRITON_CACHE_DIR"], "kernel.ptx")
        source.write_text(ptx)
        target = re.search(r"\.target (\w+)", ptx)[1]
        command = [get_ptxas(int(capability)).path, "-v", f"--gpu-name={target}", str(source)]
        text = subprocess.run(
            [*command, "-o", os.devnull], capture_output=True, text=True, check=True
        ).stderr
        spills = re.search(r"(\d+) bytes spill stores", text)[1]
        tensor_cores = "s8" if re.search(r"mma\S*\.s8", ptx) else "-"
        print(function.__name__, kernel.metadata.shared, spills, tensor_cores)
        return kernel

    driver.set_active(AbsentGPU())
    JITFunction.run = compile_only
    launch_all()


if __name__ == "__main__":
    compile_launches(sys.argv[1])
