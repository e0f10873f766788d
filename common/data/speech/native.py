"""Mel energies in C++ (filterbank.cpp), built at first use, on a CPU."""

import ctypes

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library

SOURCE = (__package__, "filterbank.cpp")
FFT_SIZE = 512  # the one size of the kernel's transform
LANES = 16  # a frame's length must be a multiple of it


def obstacle() -> str | None:
    """Why this backend cannot run here; None when it can."""
    return build_obstacle(*SOURCE)


def mel_energies(
    waveform: Shaped[Tensor, "batch samples"],
    lengths: Int[Tensor, " batch"],
    filters: Float[Tensor, "bins filters"],
    *,
    frames: int,
    frame_length: int,
    frame_shift: int,
    preemphasis: float,
    floor: float,
) -> Float[Tensor, "batch frames filters"]:
    """Energies of pre-emphasised frames under mel filters, over the size of the transform.

    Args:
        waveform: int16, or anything that is read as float32, on the int16 scale.
        lengths: samples of every row; what lies beyond counts as zero.
        filters: weights of the 257 bins of a transform of 512 points, float32.
        frames: how many frames each row has.
        frame_length: samples of a frame, a multiple of 16, at most 512.
        frame_shift: samples from one frame to the next.
        preemphasis: share of the sample before that is taken off.
        floor: stands for an energy of exactly 0.
    """
    samples = waveform if waveform.dtype == torch.int16 else waveform.float()
    samples, lengths = samples.contiguous(), lengths.long().contiguous()
    filters = filters.float().contiguous()
    batch, width = samples.shape
    energies = torch.empty(batch, frames, filters.shape[1])
    function = load_library(*SOURCE).mel_energies
    function.restype = None
    function(
        *(ctypes.c_void_p(x.data_ptr()) for x in (samples, lengths, filters, energies)),
        *(
            ctypes.c_int64(size)
            for size in (
                samples.dtype == torch.int16,
                batch,
                width,
                frames,
                frame_length,
                frame_shift,
                filters.shape[1],
                torch.get_num_threads(),
            )
        ),
        ctypes.c_float(preemphasis),
        ctypes.c_float(floor),
    )
    return energies
