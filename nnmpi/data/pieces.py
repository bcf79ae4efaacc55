"""Texts in pieces: a file is read piece by piece, and cut only where its tokens stay the same.

    the bytes    I n   t h e   b e g i n n i n g ...
    cuts            |       |                     of byte-level BPE: before white space

`cuts` is a regular expression that matches, without width, the places where bytes may be cut.
"""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import IO

PIECE = 1 << 18
LONGEST = 64 << 20
BEHIND = 4  # bytes before a place that decide whether it is one: those of a character


def pieces(
    stream: IO[bytes], cuts: re.Pattern[bytes], size: int = PIECE, length: int | None = None
) -> Iterator[bytes]:
    """The next `length` bytes of a stream, or all that are left, in pieces of about `size` bytes
    that end at cuts."""
    held, left = b"", sys.maxsize if length is None else length
    while block := stream.read(min(size, left)):
        held, left = held + block, left - len(block)
        found = _last(cuts).match(held)
        if found and found.end():
            yield held[: found.end()]
            held = held[found.end() :]
        _check(held)
    if held:
        yield held


def next_cut(stream: IO[bytes], place: int, cuts: re.Pattern[bytes], size: int = PIECE) -> int:
    """The first place from this one on where the bytes of a file may be cut, or its end.

    A file that is divided there has parts that begin and end at the same places for all ranks.
    """
    start = max(place - BEHIND, 0)
    stream.seek(start)
    held = b""
    while block := stream.read(size):
        held += block
        if found := cuts.search(held, place - start):
            return start + found.start() if place else 0
        _check(held)
    return start + len(held) if place else 0


def _check(held: bytes) -> None:
    if len(held) > LONGEST:
        raise ValueError(
            f"the text has {len(held):,} bytes without a place where it can be cut, such as a "
            "space or the end of a line; give a text of words"
        )


@lru_cache(maxsize=8)
def _last(cuts: re.Pattern[bytes]) -> re.Pattern[bytes]:
    """Matches up to the last cut."""
    return re.compile(rb"(?s:.*)" + cuts.pattern)
