"""Prompts that make a model continue an encyclopedia article (sec. 4, Wikipedia task)."""

import hashlib
import json
from pathlib import Path

from ritornello.common.cache import cached_directory
from ritornello.common.errors import UserError

_INSTRUCTION = (
    "Continue the paragraph. Do not output anything except the continuation to the paragraph. "
    'Start the continuation immediately.\n"{opening}..."'
)
# Our own sentences: the paper's come from an encyclopedia in five languages.
_OPENINGS = (
    "The lighthouse stood on a rock two miles from the shore, and in winter its keeper could not",
    "Le moulin fut construit au bord de la rivière en 1712 par une famille de meuniers qui",
    "The common swift spends most of its life in the air, where it feeds, drinks and even",
    "Die Brücke verbindet seit 1894 die beiden Ufer der Stadt und wurde nach dem Hochwasser",
    "The treaty was signed in the spring after three years of negotiation between the two",
    "La biblioteca municipal conserva una colección de mapas antiguos que fueron donados por",
)


def written_prompts(count: int) -> list[str]:
    """The first `count` of six openings written for this purpose."""
    if not 1 <= count <= len(_OPENINGS):
        raise UserError(f"count must be in [1, {len(_OPENINGS)}], got {count}")
    return [_INSTRUCTION.format(opening=opening) for opening in _OPENINGS[:count]]


def wikipedia_prompts(
    count: int, seed: int, languages: list[str], characters: int, path: str
) -> list[str]:
    """The first characters of random articles, the languages in turn; read once, then cached.

    Args:
        count: how many.
        seed: of the choice.
        languages: subsets of the data set.
        characters: length of an opening.
        path: hub id or local folder of a data set with a column `text`.

    Raises:
        UserError: the data set cannot be read.
    """
    choice = (count, seed, languages, characters, path)
    digest = hashlib.sha256(json.dumps(choice).encode()).hexdigest()[:20]

    def read(folder: Path) -> None:
        openings = _openings(count, seed, languages, characters, path)
        (folder / "openings.json").write_text(json.dumps(openings), encoding="utf-8")

    folder = cached_directory(f"article-openings/{digest}", read)
    openings = json.loads((folder / "openings.json").read_text(encoding="utf-8"))
    return [_INSTRUCTION.format(opening=opening) for opening in openings]


def _openings(count: int, seed: int, languages: list[str], characters: int, path: str) -> list[str]:
    import datasets

    openings: list[str] = []
    try:
        for number, language in enumerate(languages):
            share = len(range(number, count, len(languages)))
            rows = datasets.load_dataset(path, language, split="train", streaming=True)
            rows = rows.shuffle(seed=seed, buffer_size=1000).take(share)
            openings += [str(row["text"])[:characters] for row in rows]
    except (OSError, ValueError, ConnectionError) as error:
        raise UserError(f"{path} cannot be read ({error}); give path= a local copy") from error
    if len(openings) < count:
        raise UserError(f"{path} holds {len(openings)} articles, count={count} are asked for")
    return openings
