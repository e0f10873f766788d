"""Without a GPU, Triton kernels run in Triton's interpreter, chosen before Triton is imported."""

import importlib.util
import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") is not None:
        import triton  # noqa: F401  # now, before a test takes the variable away
