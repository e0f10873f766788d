"""Real recordings: LRS3-style manifests, and mouth crops from facial landmarks (sec. 4.1)."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int16, UInt8

from ritornello.common.data.speech.av_speech import AVClip
from ritornello.common.data.speech.filterbank import SAMPLE_RATE
from ritornello.common.optional import require

STABLE_POINTS = (33, 36, 39, 42, 45)  # nose base and eye corners
MOUTH_POINTS = slice(48, 68)
_FACE_SIZE = 256


def read_video(path: str | Path) -> UInt8[np.ndarray, "frames height width"]:
    """Grey frames of a video file."""
    av = require("av", extra="assets")
    with av.open(str(path)) as container:
        pictures = container.decode(video=0) if container.streams.video else ()
        frames = [f.to_ndarray(format="gray") for f in pictures]
    if not frames:
        raise ValueError(f"path must be a video, got {path} without pictures")
    return np.stack(frames)


def read_audio(path: str | Path) -> Int16[np.ndarray, " samples"]:
    """Samples at 16 kHz, channels mixed, of a sound file or of a video's sound track."""
    av = require("av", extra="assets")
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0)) if container.streams.audio else []
    if not frames:
        raise ValueError(f"path must be a sound file, got {path} without sound")
    parts = [part for frame in (*frames, None) for part in resampler.resample(frame)]
    chunks = [part.to_ndarray()[0] for part in parts]
    return np.concatenate(chunks).astype(np.int16)


def similarity_transform(
    source: Float[np.ndarray, "points 2"], target: Float[np.ndarray, "points 2"]
) -> Float[np.ndarray, "2 3"]:
    """Rotation, scale and shift that take `source` points closest to `target` (least squares)."""
    s_mean, t_mean = source.mean(0), target.mean(0)
    s, t = source - s_mean, target - t_mean
    norm = np.square(s).sum()
    cosine = (s * t).sum() / norm
    sine = (s[:, 0] * t[:, 1] - s[:, 1] * t[:, 0]).sum() / norm
    matrix = np.array([[cosine, -sine], [sine, cosine]])
    return np.column_stack([matrix, t_mean - matrix @ s_mean])


class MouthCrop:
    """Follows a face with 68 landmarks and cuts out the mouth.

    Landmarks are averaged over `window` frames, the nose base and eye corners are mapped on those
    of a mean face of 256×256 pixels, and `size`×`size` pixels around the mean of the lip points are
    kept.

    Args:
        mean_face: (68, 2) landmarks (x, y) of the mean face.
        size: height and width of a crop.
        window: frames over which landmarks are smoothed.
    """

    def __init__(self, mean_face: Float[np.ndarray, "68 2"], *, size: int = 96, window: int = 12):
        mean_face = np.asarray(mean_face, dtype=np.float64)
        if mean_face.shape != (68, 2):
            raise ValueError(f"mean_face must be (68, 2), got {mean_face.shape}")
        self.mean_face, self.size, self.window = mean_face, size, window

    def _smooth(self, landmarks: np.ndarray) -> np.ndarray:
        half = self.window // 2
        return np.stack(
            [landmarks[max(0, t - half) : t + half + 1].mean(0) for t in range(len(landmarks))]
        )

    def __call__(
        self,
        frames: UInt8[np.ndarray, "frames height width"],
        landmarks: Float[np.ndarray, "frames 68 2"],
    ) -> tuple[UInt8[np.ndarray, "frames size size"], Float[np.ndarray, "frames 20 2"]]:
        """The crops, and the lip points inside them."""
        from scipy.ndimage import map_coordinates

        if landmarks.shape != (len(frames), 68, 2):
            raise ValueError(
                f"landmarks must be ({len(frames)}, 68, 2), got {tuple(landmarks.shape)}"
            )
        stable = list(STABLE_POINTS)
        crops, lips = [], []
        for frame, points in zip(frames, self._smooth(landmarks.astype(np.float64)), strict=True):
            warp = similarity_transform(points[stable], self.mean_face[stable])
            warped = points[MOUTH_POINTS] @ warp[:, :2].T + warp[:, 2]
            limit = _FACE_SIZE - self.size
            corner = np.clip(np.round(warped.mean(0) - self.size / 2), 0, limit)
            x, y = np.meshgrid(np.arange(self.size) + corner[0], np.arange(self.size) + corner[1])
            wanted = np.stack([x.ravel(), y.ravel()], axis=1) - warp[:, 2]
            original = wanted @ np.linalg.inv(warp[:, :2]).T
            values = map_coordinates(frame.astype(np.float32), original.T[::-1], order=1)
            crops.append(np.clip(np.round(values), 0, 255).astype(np.uint8).reshape(x.shape))
            lips.append(warped - corner)
        return np.stack(crops), np.stack(lips).astype(np.float32)


class LRS3Manifest:
    """Clips listed in a manifest, as AV-HuBERT's preparation writes it.

    The first line is the root; every other line holds, between tabs, id, video, audio, frames and
    samples.
    Beside each video, ``<video stem>.npy`` holds its lip points (frames, 20, 2) in crop pixels.

    Args:
        tsv: the manifest.
        wrd: text of every clip, a line each.
        min_frames: shorter clips are left out.
        max_frames: longer clips are left out.
        missing_landmarks: ``raise``, or ``count`` them in `without_landmarks` and put the points
            at the middle of the crop.
    """

    def __init__(
        self,
        tsv: str | Path,
        wrd: str | Path,
        *,
        min_frames: int = 5,
        max_frames: int = 400,
        missing_landmarks: Literal["raise", "count"] = "raise",
    ) -> None:
        for name, file in (("tsv", tsv), ("wrd", wrd)):
            if not Path(file).exists():
                raise ValueError(f"{name} must be a file, no such file: {file}")
        root, *lines = Path(tsv).read_text().splitlines() or [""]
        texts = Path(wrd).read_text().splitlines()
        if len(lines) != len(texts):
            raise ValueError(
                f"tsv and wrd must list the same clips, got {len(lines)} and {len(texts)} lines"
            )
        self.name, self.root = Path(tsv).name, Path(root)
        self.missing_landmarks, self.without_landmarks = missing_landmarks, 0
        if not all(re.match(r"[^\t]*\t[^\t]+\t[^\t]+\t\d+(\t|$)", line) for line in lines):
            raise ValueError(f"tsv must hold id, video, audio, frames by line, got another: {tsv}")
        self.rows = [
            (index, line.split("\t"), text)
            for index, (line, text) in enumerate(zip(lines, texts, strict=True))
            if min_frames <= int(line.split("\t")[3]) <= max_frames
        ]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def frame_counts(self) -> list[int]:
        """Frames of every clip, as the manifest says."""
        return [int(columns[3]) for _, columns, _ in self.rows]

    def check_files(self) -> None:
        """Raises a ValueError when no clip is left, or a file of one is missing."""
        if not self.rows:
            raise ValueError(f"{self.name} must list clips of an accepted length, got none")
        missing = [
            str(file)
            for _, (_, video, audio, *_), _ in self.rows
            for file in (self.root / video, self.root / audio, *self._needed(self.root / video))
            if not file.is_file()
        ]
        if missing:
            raise ValueError(
                f"{self.name} lists files that are not there: {missing[0]} ({len(missing)} in all)"
            )

    def _needed(self, video: Path) -> list[Path]:
        return [video.with_suffix(".npy")] if self.missing_landmarks == "raise" else []

    def _landmarks(self, video: Path, frames: np.ndarray) -> np.ndarray:
        file = video.with_suffix(".npy")
        if file.exists():
            landmarks = np.load(file)
            if landmarks.shape != (len(frames), 20, 2):
                raise ValueError(
                    f"{file} must hold ({len(frames)}, 20, 2) lip points, got {landmarks.shape}"
                )
            return landmarks.astype(np.float32)
        if self.missing_landmarks == "raise":
            raise ValueError(
                f"no landmarks for {video}: expected {file} or missing_landmarks='count'"
            )
        self.without_landmarks += 1
        middle = np.array(frames.shape[2:0:-1], dtype=np.float32) / 2
        return np.broadcast_to(middle, (len(frames), 20, 2)).copy()

    def __getitem__(self, index: int) -> AVClip:
        _, (_, video, audio, *_), text = self.rows[index]
        frames = read_video(self.root / video)
        landmarks = self._landmarks(self.root / video, frames)
        return AVClip(read_audio(self.root / audio), frames, landmarks, text.lower(), -1, [])

    def labels(self, km: str | Path) -> list[np.ndarray]:
        """k-means classes of the clips kept, from a file with a line of numbers per clip."""
        lines = Path(km).read_text().splitlines()
        if self.rows and len(lines) <= self.rows[-1][0]:
            raise ValueError(
                f"km must have a line for every clip of the manifest, got {len(lines)}"
            )
        try:
            return [np.array(lines[index].split(), dtype=np.int64) for index, _, _ in self.rows]
        except ValueError as error:
            raise ValueError(f"km must hold whole numbers, got another in {km}: {error}") from error


class Recordings:
    """Sound files at 16 kHz, each read when it is asked for.

    Args:
        files: the files; one may be listed more than once.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Int16[np.ndarray, " samples"]:
        return _kept(self.files[index])


_kept = lru_cache(maxsize=8)(read_audio)  # a room has few files, and all clips of a test hear them


def load_noises(folder: str | Path, pattern: str = "*.wav") -> Recordings:
    """All noise recordings below a folder (MUSAN, DEMAND).

    Raises:
        ValueError: there is none.
    """
    files = sorted(Path(folder).rglob(pattern))
    if not files:
        raise ValueError(f"folder must hold noise files {pattern}, found none below {folder}")
    return Recordings(files)
