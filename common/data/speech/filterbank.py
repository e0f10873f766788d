"""Log mel filterbanks of 16 kHz speech, batched and on any device."""

import math
import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ritornello.common.data.speech import native
from ritornello.common.kernels.dispatch import choose_backend, device_obstacle

SAMPLE_RATE = 16_000
_INT16_SCALE = 32_768.0
_FLOAT64_EPS = 2.220446049250313e-16  # stands for exact zero before the logarithm


def frame_count(num_samples: int, *, frame_length: int = 400, frame_shift: int = 160) -> int:
    """Number of filterbank frames of a signal; the last one is completed with zeros."""
    if num_samples <= frame_length:
        return 1
    return 1 + math.ceil((num_samples - frame_length) / frame_shift)


def mel_filters(
    num_filters: int, fft_size: int, sample_rate: int = SAMPLE_RATE
) -> Float[Tensor, "bins filters"]:
    """Triangular filters whose corners lie on whole FFT bins, ``floor((fft_size+1)·f/rate)``."""
    top = 2595 * math.log10(1 + sample_rate / 2 / 700)
    mels = torch.linspace(0, top, num_filters + 2, dtype=torch.float64)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = torch.floor((fft_size + 1) * hertz / sample_rate)
    bins = torch.arange(fft_size // 2 + 1, dtype=torch.float64)[:, None]
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    rising = ((bins - left) / (centre - left)) * ((bins >= left) & (bins < centre))
    falling = ((right - bins) / (right - centre)) * ((bins >= centre) & (bins < right))
    return torch.nan_to_num(rising) + torch.nan_to_num(falling)


def stack_frames(
    features: Float[Tensor, "batch frames dim"], stack: int
) -> Float[Tensor, "batch stacked wide"]:
    """Joins every `stack` frames into one; the end is completed with zeros."""
    batch, frames, dim = features.shape
    padded = F.pad(features, (0, 0, 0, -frames % stack))
    return padded.reshape(batch, -1, stack * dim)


def fit_length(
    features: Float[Tensor, "batch frames dim"], num_frames: int
) -> Float[Tensor, "batch num_frames dim"]:
    """Trims, or fills with zeros, to `num_frames` (the length of the video)."""
    return F.pad(features, (0, 0, 0, num_frames - features.shape[1]))


def as_int16_scale(waveform: Shaped[Tensor, "*batch samples"]) -> Shaped[Tensor, "*batch samples"]:
    """Samples on the int16 scale; floats in [-1, 1] are scaled to it with a warning.

    Returns:
        int16 as it is, anything else as float32.
    """
    if not waveform.is_floating_point():
        return waveform if waveform.dtype == torch.int16 else waveform.float()
    peak = waveform.detach().abs().max() if waveform.numel() else waveform.new_zeros(())
    if 0 < float(peak) <= 1:
        warnings.warn(
            "waveform lies in [-1, 1]: scaled by 32768, the features are defined on int16 values",
            stacklevel=3,
        )
        return waveform.float() * _INT16_SCALE
    return waveform.float()


class LogFilterbank(nn.Module):
    """Stacked log mel filterbank features at the video's rate (AV-HuBERT's audio input).

    Pre-emphasis, rectangular windows of 400 samples every 160, power spectrum of 512 points over
    512, 26 triangular filters to 8 kHz, natural logarithm; `stack` frames joined; zeros up to the
    video's length; layer normalisation of each stacked frame without weights.

    Args:
        num_filters: mel filters.
        stack: filterbank frames (100 Hz) per output frame (25 Hz with 4).
        normalize: layer-normalise every stacked frame.
        sample_rate: rate of the waveforms in Hz; only 16 000 is accepted.
        preemphasis: share of the sample before that is taken off.
        frame_length: samples of a frame.
        frame_shift: samples from one frame to the next.
        fft_size: points of the transform.
        backend: ``compiled`` (C++, CPU, without gradients) or ``torch``; the fastest when absent.

    Raises:
        ValueError: another sample rate, or a frame longer than the transform.
    """

    filters: Tensor

    def __init__(
        self,
        *,
        num_filters: int = 26,
        stack: int = 4,
        normalize: bool = True,
        sample_rate: int = SAMPLE_RATE,
        preemphasis: float = 0.97,
        frame_length: int = 400,
        frame_shift: int = 160,
        fft_size: int = 512,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        if sample_rate != SAMPLE_RATE:
            raise ValueError(
                f"sample_rate must be {SAMPLE_RATE} Hz, got {sample_rate}: resample the waveform "
                "first, for example with scipy.signal.resample_poly"
            )
        if not 0 < frame_length <= fft_size:
            raise ValueError(
                f"frame_length must lie in [1, fft_size={fft_size}], got {frame_length}"
            )
        self.stack, self.normalize, self.preemphasis = stack, normalize, preemphasis
        self.backend = backend
        self.frame_length, self.frame_shift, self.fft_size = frame_length, frame_shift, fft_size
        filters = mel_filters(num_filters, fft_size, sample_rate).float()
        self.register_buffer("filters", filters, persistent=False)

    def log_mel(
        self,
        waveform: Shaped[Tensor, "batch samples"],
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch frames filters"]:
        """Log filterbank at 100 Hz; frames past a row's own length are exact zeros.

        Args:
            waveform: int16 values, as integers or floats; a row may be padded at the right.
            lengths: samples of every row; all of them when absent.

        Raises:
            ValueError: not one channel a row, or lengths that no row has.
        """
        if waveform.dim() != 2:
            raise ValueError(
                f"waveform must be (batch, samples) of one channel, got {tuple(waveform.shape)}"
            )
        samples = waveform.shape[1]
        sizes = [] if lengths is None else [int(n) for n in lengths]
        if lengths is not None and (
            len(sizes) != len(waveform) or not all(0 <= n <= samples for n in sizes)
        ):
            raise ValueError(
                f"lengths must be {len(waveform)} numbers in [0, {samples}], got {sizes}"
            )
        signal = as_int16_scale(waveform)
        frames = frame_count(samples, frame_length=self.frame_length, frame_shift=self.frame_shift)
        if self._backend_for(signal) == "compiled":
            energies = native.mel_energies(
                signal,
                torch.full((len(signal),), samples) if lengths is None else lengths,
                self.filters,
                frames=frames,
                frame_length=self.frame_length,
                frame_shift=self.frame_shift,
                preemphasis=self.preemphasis,
                floor=_FLOAT64_EPS,
            )
            log_mel = energies.log_()
        else:
            energies = self._energies(signal.float(), lengths, frames)
            log_mel = torch.where(energies == 0, _FLOAT64_EPS, energies).log()
        if lengths is None:
            return log_mel
        own = [
            frame_count(n, frame_length=self.frame_length, frame_shift=self.frame_shift)
            for n in sizes
        ]
        present = torch.arange(frames)[None, :] < torch.tensor(own)[:, None]
        return log_mel * present.to(log_mel.device)[..., None]

    def _backend_for(self, signal: Tensor) -> str:
        reason = None
        if torch.compiler.is_compiling() or (signal.requires_grad and torch.is_grad_enabled()):
            reason = "it has no gradient and no graph of tensors"
        elif self.fft_size != native.FFT_SIZE or self.frame_length % native.LANES:
            reason = (
                f"it needs fft_size={native.FFT_SIZE} and a frame_length that is a multiple of "
                f"{native.LANES}"
            )
        reason = reason or device_obstacle(signal.device, "cpu") or native.obstacle()
        available = {"compiled": reason, "torch": None}
        return choose_backend("log_filterbank", self.backend, available, signal.device)

    def _energies(
        self, signal: Float[Tensor, "batch samples"], lengths: Tensor | None, frames: int
    ) -> Float[Tensor, "batch frames filters"]:
        """Mel energies on any device, with gradients."""
        emphasised = torch.cat(
            [signal[:, :1], signal[:, 1:] - self.preemphasis * signal[:, :-1]], dim=1
        )
        if lengths is not None:
            inside = torch.arange(signal.shape[1], device=signal.device) < lengths[:, None]
            emphasised = emphasised * inside
        needed = (frames - 1) * self.frame_shift + self.frame_length
        windows = F.pad(emphasised, (0, needed - signal.shape[1])).unfold(
            1, self.frame_length, self.frame_shift
        )
        spectrum = torch.fft.rfft(windows, self.fft_size)
        power = torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag)
        return (power @ self.filters) / self.fft_size

    def forward(
        self,
        waveform: Shaped[Tensor, "batch samples"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        num_frames: int | Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels frames"]:
        """Features in the layout the encoder takes, (batch, 26·stack, frames).

        Args:
            waveform: (batch, samples) at 16 kHz on the int16 scale.
            lengths: samples of every row.
            num_frames: length of the video in frames, of all rows or of each; the features are
                trimmed or zero-filled to the longest, and are zeros past a row's own.
        """
        stacked = stack_frames(self.log_mel(waveform, lengths), self.stack)
        if isinstance(num_frames, Tensor):
            stacked = fit_length(stacked, int(num_frames.max()))
            inside = torch.arange(stacked.shape[1], device=stacked.device) < num_frames[:, None]
            stacked = stacked * inside[..., None]
        elif num_frames is not None:
            stacked = fit_length(stacked, num_frames)
        if self.normalize:
            stacked = F.layer_norm(stacked, stacked.shape[-1:])
        return stacked.transpose(1, 2)
