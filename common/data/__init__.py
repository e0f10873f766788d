"""Embedded sets, real ones by local path or hub id, and seeded generators."""

from ritornello.common.data.text import (
    TextWindows,
    c4_shard,
    documentation_text,
    stdlib_source_text,
    text_windows,
    wikitext2,
)

__all__ = [
    "TextWindows",
    "c4_shard",
    "documentation_text",
    "stdlib_source_text",
    "text_windows",
    "wikitext2",
]
