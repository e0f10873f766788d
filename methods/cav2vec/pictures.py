"""The pixel loops of the picture corruptions: a patch laid over a clip, and a blur.

Two ways that give the same values: "compiled" (C++, built at first use) and "numpy".
"""

import ctypes

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from ritornello.common.kernels.compiled import build_obstacle, load_library
from ritornello.common.kernels.dispatch import choose_backend

SOURCE = (__package__, "pictures.cpp")
_BLUR_TAPS = 7


def _compiled(operator: str, backend: str | None) -> bool:
    available = {"compiled": build_obstacle(*SOURCE), "numpy": None}
    return choose_backend(operator, backend, available, "cpu") == "compiled"


def _call(name: str, arrays: tuple[np.ndarray, ...], *sizes: int) -> None:
    function = getattr(load_library(*SOURCE), name)
    function.restype = None
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
    function(*pointers, *(ctypes.c_int64(n) for n in (*sizes, torch.get_num_threads())))


def _check_grey_values(frames: np.ndarray) -> None:
    """Raises ValueError unless the frames are uint8, which the compiled loops take for granted."""
    if frames.dtype != np.uint8:
        raise ValueError(f"frames must be uint8, got {frames.dtype}")


def overlay(
    frames: UInt8[np.ndarray, "n height width *channels"],
    patch: Float[np.ndarray, "rows columns *channels"],
    alpha: Float[np.ndarray, "rows columns"],
    top: Int[np.ndarray, " n"],
    left: Int[np.ndarray, " n"],
    out: UInt8[np.ndarray, "n height width *channels"] | None = None,
    backend: str | None = None,
) -> UInt8[np.ndarray, "n height width *channels"]:
    """Blends a patch into every frame at its own place; what lies outside the frame is cut off.

    Sums are truncated to whole grey values, as in the official code.

    Args:
        frames: grey or colour.
        patch: as many channels as the frames.
        alpha: opacity in [0, 1].
        top: row of the patch's upper edge in each frame; may be negative.
        left: column of its left edge.
        out: receives the result, and may be `frames`; a new array when absent.
        backend: "compiled" or "numpy"; the fastest when absent.

    Raises:
        ValueError: frames that are not uint8; a patch whose size or channels do not fit; not one
            place per frame; an `out` of another shape or type, or with gaps.
    """
    _check_grey_values(frames)
    if not len(top) == len(left) == len(frames):
        raise ValueError(
            f"top and left must have one entry per frame ({len(frames)}), "
            f"got {len(top)} and {len(left)}"
        )
    if patch.shape[:2] != alpha.shape or patch.shape[2:] != frames.shape[3:]:
        raise ValueError(
            f"patch must fit alpha {alpha.shape} and the channels of frames {frames.shape}, "
            f"got {patch.shape}"
        )
    if out is None:
        out = np.array(frames, order="C")
    elif out.shape != frames.shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be one piece of uint8 {frames.shape}, got {out.dtype} {out.shape}"
        )
    elif out is not frames:
        np.copyto(out, frames)
    channels = int(np.prod(frames.shape[3:]))
    opacity = np.broadcast_to(alpha if patch.ndim == 2 else alpha[..., None], patch.shape)
    over, rest = patch * opacity, 1 - opacity
    rows, columns = alpha.shape
    if _compiled("overlay", backend):
        doubles = [np.ascontiguousarray(x, dtype=np.float64) for x in (over, rest)]
        places = [np.ascontiguousarray(x, dtype=np.int64) for x in (top, channels * left)]
        count, height, width = frames.shape[:3]
        sizes = (count, height, width * channels, rows, columns * channels)
        _call("overlay", (out, *doubles, *places), *sizes)
        return out
    height, width = frames.shape[1:3]
    for frame, y, x in zip(out, top.tolist(), left.tolist(), strict=True):
        shown = slice(max(0, -y), max(0, height - y)), slice(max(0, -x), max(0, width - x))
        under = frame[max(0, y) : max(0, y + rows), max(0, x) : max(0, x + columns)]
        under[:] = (under * rest[shown] + over[shown]).astype(np.uint8)
    return out


def gaussian_blur(
    frames: UInt8[np.ndarray, "n height width"], sigma: float, backend: str | None = None
) -> UInt8[np.ndarray, "n height width"]:
    """A separable 7×7 Gaussian, edges mirrored.

    Args:
        frames: at least 4 pixels high and wide.
        sigma: standard deviation in pixels.
        backend: "compiled" or "numpy"; the fastest when absent.

    Raises:
        ValueError: smaller frames, frames that are not uint8, or no positive sigma.
    """
    _check_grey_values(frames)
    reach = _BLUR_TAPS // 2
    if not sigma > 0 or min(frames.shape[1:]) <= reach:
        raise ValueError(
            f"sigma must be positive and frames at least {reach + 1} pixels high and wide, "
            f"got {sigma} and {frames.shape}"
        )
    taps = np.exp(-0.5 * (np.arange(reach + 1) / sigma) ** 2).astype(np.float32)
    taps /= taps[0] + 2 * taps[1:].sum()
    if _compiled("gaussian_blur", backend):
        frames = np.ascontiguousarray(frames)
        result = np.empty_like(frames)
        _call("blur", (frames, result, taps), *frames.shape, reach)
        return result
    x = frames.astype(np.float32)
    for axis in (1, 2):
        size = x.shape[axis]
        pad = [(reach, reach) if axis == a else (0, 0) for a in range(3)]
        moved = np.moveaxis(np.pad(x, pad, mode="reflect"), axis, 0)
        x = taps[0] * np.moveaxis(x, axis, 0)
        for k in range(1, reach + 1):  # the two taps at distance k weigh the same
            pair = moved[reach - k : reach - k + size] + moved[reach + k : reach + k + size]
            x += pair * taps[k]
        x = np.moveaxis(x, 0, axis)
    return np.round(x).astype(np.uint8)
