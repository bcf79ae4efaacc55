"""The last collectives and messages of a rank, and the call that it waits in, for diagnostics.

The environment variables NNMPI_DEBUG and NNMPI_TIMEOUT set checks and time limits.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple, Self, TypeAlias
from zlib import crc32

import numpy as np

from nnmpi.comm.transport.base import PENDING, TAGS

KEPT = 20  # calls in the log
START = 300.0  # seconds in which all ranks have to start, unless NNMPI_TIMEOUT is set


class DebugSettings(NamedTuple):
    """The settings of diagnostics that environment variables request."""

    compare: bool = False  # the ranks compare their calls before each collective
    timeout: float = math.inf  # seconds that a rank may wait in one call
    start: float = START  # seconds that a rank may wait for all ranks to start

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Reads NNMPI_DEBUG=collectives and NNMPI_TIMEOUT=SECONDS; raises ValueError for other
        values."""
        debug, limit = environment.get("NNMPI_DEBUG", ""), environment.get("NNMPI_TIMEOUT", "")
        if debug not in ("", "collectives"):
            raise ValueError(f"NNMPI_DEBUG is {debug!r}: set it to 'collectives' or not at all")
        try:
            timeout = float(limit or math.inf)
        except ValueError:
            timeout = math.nan
        if not timeout > 0:
            raise ValueError(f"NNMPI_TIMEOUT is {limit!r}: set it to seconds above 0 or not at all")
        return cls(debug == "collectives", timeout, timeout if limit else START)


class CallSignature(NamedTuple):
    """The description of a collective call, without its number, so that repeated calls share it."""

    comm: str
    operation: str
    algorithm: str
    dtype: np.dtype[Any] | None
    elements: int
    root: int

    @property
    def bytes(self) -> int:
        return 0 if self.dtype is None else self.elements * self.dtype.itemsize


@lru_cache(1000)
def first_tag(signature: CallSignature, marks: int) -> int:
    """Returns the first of the PENDING tags of collectives with this signature, of `marks` such
    ranges."""
    return TAGS + PENDING * (crc32(repr(signature[1:]).encode()) % marks)


# The signature, the call number, the calling code object and its instruction offset. A LoggedCall
# is made from it only for printing: finding the line takes longer than a small message.
CallRecord: TypeAlias = tuple[CallSignature, int, CodeType, int]


class LoggedCall(NamedTuple):
    """One collective or message of one rank, with the file and line that called it."""

    comm: str
    number: int  # counts the communicator's collectives from 1; -1 for a message
    operation: str
    algorithm: str
    dtype: np.dtype[Any] | str | None  # a name if the call was received from another rank
    elements: int
    root: int  # or the peer of a message, or the first element of a part of shared memory
    file: str
    line: int

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        signature, number, code, at = record
        lines = (line for start, end, line in code.co_lines() if start <= at < end and line)
        return cls(signature.comm, number, *signature[1:], code.co_filename, next(lines, 0))

    @property
    def text(self) -> str:
        """The call in words, without its code location: "all_reduce of 4 float32 by ring"."""
        words = {
            "broadcast": "from rank",
            "irecv": "from rank",
            "reduce": "to rank",
            "isend": "to rank",
            "shared.all_reduce": "from element",
        }
        buffer = "" if self.dtype is None else f" of {self.elements:,} {self.dtype}"
        how = f" by {self.algorithm}" if self.algorithm else ""
        root = f" {words.get(self.operation, 'root rank')} {self.root}" if self.root >= 0 else ""
        return f"{self.operation}{buffer}{root}{how}"

    @property
    def location(self) -> str:
        file = os.path.relpath(self.file)
        return f"{self.file if file.startswith('..') else file}:{self.line}"

    def __str__(self) -> str:
        number = f"call {self.number} of" if self.number >= 0 else "a message of"
        return f"{self.text} ({number} Comm {self.comm}, {self.location})"


class CallCounter:
    """Counts the collectives that this rank has called on one communicator."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members, self.calls = tuple(members), 0  # members: ranks of the whole job


class CallLog:
    """The last calls of this rank, and the call that it waits in; other threads may read it. It is
    kept in every run, so that a report can show where each call was made."""

    def __init__(self, settings: DebugSettings | None = None) -> None:
        self.settings = settings or DebugSettings()
        self.records: deque[CallRecord] = deque(maxlen=KEPT)
        self.counters: dict[str, CallCounter] = {}
        self.waits: tuple[CallRecord, float] | None = None

    @property
    def calls(self) -> list[LoggedCall]:
        """The last calls, the latest one last."""
        return [*map(LoggedCall.of, tuple(self.records))]

    @contextmanager
    def during(self, call: CallRecord) -> Iterator[None]:
        """A context within which this rank counts as waiting in `call`."""
        self.waits = call, time.monotonic()
        try:
            yield
        finally:
            self.waits = None

    def counter(self, comm: str, members: Sequence[int]) -> CallCounter:
        """Makes the counter of the calls on Comm `comm`, with its ranks in the whole job; it is
        kept after `Comm.free`, since other ranks may still wait in a call."""
        self.counters[comm] = counter = CallCounter(members)
        return counter

    def participants(self, call: LoggedCall) -> tuple[int, ...]:
        """Returns the ranks (of the job) that must make a call, or the peer of a message."""
        members = self.counters[call.comm].members if call.comm in self.counters else ()
        return members if call.number >= 0 else (members[call.root],)

    def waiting(self) -> tuple[LoggedCall, float] | None:
        """Returns (the call in which this rank waits, its seconds), or None."""
        waits = self.waits
        return None if waits is None else (LoggedCall.of(waits[0]), time.monotonic() - waits[1])
