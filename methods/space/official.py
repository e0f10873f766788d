"""The published questions, read from a user's copy (their licence allows no other form)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ritornello.common.chat import Image, Text
from ritornello.common.errors import UserError
from ritornello.common.evaluation import Sample, SampleError, TextTarget

_MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_HOW = (
    "the benchmark is one archive (CC BY-NC-ND 4.0) linked from the README of "
    "github.com/apple/ml-space-benchmark: unpack it and pass the folder"
)


@dataclass(frozen=True)
class Media:
    """A picture or video of a question, read when the question is asked.

    Attributes:
        path: the file.
        frames: of a video, as many as are shown, evenly spaced.
    """

    path: Path
    frames: int = 0

    def load(self) -> tuple[Image, ...]:
        """The picture, or `frames` pictures of the video in order of time."""
        if not self.frames:
            media = _MEDIA_TYPES[self.path.suffix.lower()]
            return (Image(self.path.read_bytes(), media),)
        return _video_frames(self.path, self.frames)


def load_official(
    source: str | Path,
    folder: str | None = None,
    *,
    video_frames: int = 32,
    limit: int | None = None,
) -> list[Sample]:
    """The questions of one published folder, such as `MRT_text` or `MapSketching_BEVImage`.

    Four questions in a row share a stimulus, its right answer in each of the four places; they
    form one cluster.

    Args:
        source: the unpacked benchmark, or the hub id of a data set with its files.
        folder: of the task, which holds `qas.json`; None where `source` is that folder itself, or
            for the questions of all its folders.
        video_frames: frames that stand for a video.
        limit: only so many questions of a folder.

    Raises:
        UserError: the folder or file is not there.
        SampleError: an entry lacks a field or names a file that is missing.
    """
    root = _root(source).resolve()
    file = root / (folder or "") / "qas.json"
    if not file.is_file():
        there = sorted(p.parent.name for p in root.glob("*/qas.json"))
        if folder is None and there:
            options: dict[str, Any] = {"video_frames": video_frames, "limit": limit}
            return [sample for name in there for sample in load_official(root, name, **options)]
        raise UserError(f"there is no {file}; folders with questions: {there or 'none'}; {_HOW}")
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SampleError(f"{file} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise SampleError(f"{file} must hold a list of questions, got {type(entries).__name__}")
    return [
        _sample(file, folder or file.parent.name, index, entry, video_frames)
        for index, entry in enumerate(entries[:limit])
    ]


def published_folder(family: str, presentation: str) -> str:
    """The usual folder name of a family: `MRT_text`, `MapSketching_BEVImage`."""
    large = family in ("DirectionEstimation", "DistanceEstimation", "MapSketching")
    names = (
        {"text": "BEVText", "image": "BEVImage"} if large else {"text": "text", "image": "vision"}
    )
    return f"{family}_{names[presentation]}"


def _root(source: str | Path) -> Path:
    local = Path(source).expanduser()
    if local.is_dir():
        return local
    from ritornello.common.models.hub import hub_snapshot

    try:
        return hub_snapshot(str(source), repo_type="dataset")
    except UserError as error:
        raise UserError(f"{error}; {_HOW}") from error


def _sample(file: Path, folder: str, index: int, entry: Any, frames: int) -> Sample:
    place = f"{file}, entry {index}"
    if not isinstance(entry, dict) or not {"question", "answer"} <= entry.keys():
        raise SampleError(f"{place}: needs the fields question and answer")
    question, answer = entry["question"], entry["answer"]
    pieces = [question] if isinstance(question, str) else question
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise SampleError(f"{place}: question must be a text or a list of texts")
    if answer is None or not isinstance(answer, int | str):
        raise SampleError(f"{place}: answer must be a number or a text, got {answer!r}")
    return Sample(
        f"{folder}-{index}",
        _parts(file.parent, pieces, place, frames),
        target=TextTarget((str(answer),)),
        cluster=f"{folder}-{index // 4}",
        labels={"task": folder},
        meta={"answer": answer},
    )


def _parts(folder: Path, pieces: Sequence[str], place: str, frames: int) -> tuple[Any, ...]:
    parts: list[Any] = []
    for piece in pieces:
        kind, colon, name = piece.partition(":")
        if not colon or kind not in ("IMAGE", "VIDEO"):
            parts.append(Text(piece))
            continue
        path = next((p for p in (folder / name, folder.parent / name) if p.is_file()), None)
        if path is None:
            raise SampleError(f"{place}: there is no file {folder / name}")
        if kind == "IMAGE" and path.suffix.lower() not in _MEDIA_TYPES:
            raise SampleError(f"{place}: pictures must be {sorted(_MEDIA_TYPES)}, got {path.name}")
        parts.append(Media(path, frames if kind == "VIDEO" else 0))
    return tuple(parts)


def _video_frames(path: Path, number: int) -> tuple[Image, ...]:
    """Evenly spaced frames, the first and the last included."""
    import numpy as np

    from ritornello.common.optional import require
    from ritornello.methods.space.drawing import png

    av = require("av", extra="assets")
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(number, len(frames))).round())
    return tuple(png(frames[int(index)]) for index in chosen)
