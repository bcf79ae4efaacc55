"""Reads a text file in pieces, which are cut only where no token crosses the cut, so that the
pieces have the same tokens as the whole text.

    the bytes    I n   t h e   b e g i n n i n g ...
    cuts            |       |                     of byte-level BPE: before white space

`cuts` is a regular expression that matches the places where bytes may be cut, with width 0.
"""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import IO

import numpy as np

from nnmpi.options.quoting import shown

ANYWHERE = re.compile(rb"")
CHARACTERS = re.compile(rb"(?=[^\x80-\xbf])")
BEFORE_SPACE = re.compile(
    rb"(?<=[^\x00-\x20])(?<!\xc2\x85)(?<!\xc2\xa0)(?<!\xe1\x9a\x80)(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])"
    rb"(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)(?=[ \t\r\n])"
)
"""The places between a character that is not white space and one that is. No token of byte-level
BPE crosses them: BPE first splits a text into words, and white space can only begin a word."""

PIECE_BYTES = 1 << 18
LONGEST = 64 << 20
LOOKBEHIND = 4  # bytes before a place that decide if it is a cut: the longest UTF-8 character


def pieces(
    stream: IO[bytes], cuts: re.Pattern[bytes], size: int = PIECE_BYTES, length: int | None = None
) -> Iterator[bytes]:
    """Yields the next `length` bytes of a stream (default: the rest) in pieces of about `size`
    bytes, which end only where `cuts` matches, so that no token lies in two."""
    held: list[bytes] = []  # blocks since the last cut
    behind, left = b"", sys.maxsize if length is None else length
    while block := stream.read(min(size, left)):
        left -= len(block)
        known = behind + block  # a cut depends on bytes before it, which the last block may have
        match = _last(cuts).match(known)
        end = match.end() - len(behind) if match else -1
        if end > 0 or (end == 0 and held):
            yield b"".join([*held, block[:end]])
            held, block = [], block[end:]
            known = block
        held.append(block)
        behind = known[-LOOKBEHIND:]
        _check(sum(map(len, held)))
    if any(held):
        yield b"".join(held)


def next_cut(
    stream: IO[bytes], place: int, cuts: re.Pattern[bytes], size: int = PIECE_BYTES
) -> int:
    """Returns the first byte offset, from `place` on, at which `cuts` lets the text in a file be
    cut; the end of the file if there is none. Each rank calls this for the start and the end of its
    part, so that parts fit together without communication."""
    start = begin = max(place - LOOKBEHIND, 0)
    stream.seek(start)
    behind = b""
    while block := stream.read(size):
        known = behind + block
        # not before the place, and not again among bytes that were searched
        if match := cuts.search(known, max(place - begin, len(behind))):
            return begin + match.start() if place else 0
        behind = known[-LOOKBEHIND:]
        begin += len(known) - len(behind)
        _check(begin - start)
    return begin + len(behind) if place else 0


def _check(count: int) -> None:
    if count > LONGEST:
        raise ValueError(
            f"the text has {count:,} bytes in a row (at most {LONGEST:,}) without a place to cut, "
            "such as a space or the end of a line; give a text of words, or leave the tokenizer out"
        )


@lru_cache(maxsize=8)
def _last(cuts: re.Pattern[bytes]) -> re.Pattern[bytes]:
    """Returns a pattern from a block's start to the last place that `cuts` allows."""
    return re.compile(rb"(?s:.*)" + cuts.pattern)


# ---- bytes as text


def as_text(data: bytes) -> str:
    """UTF-8 bytes as text; raises ValueError, which names the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        preceding = shown(repr(data[max(error.start - 20, 0) : error.start]))
        raise ValueError(
            f"the text is not UTF-8: byte 0x{data[error.start]:02x} after {preceding}; convert "
            "it, or leave the tokenizer out, so that a token is a byte"
        ) from None


def points_of(text: str) -> np.ndarray:
    """The code points of a text: uint32, (T,)."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
