"""The last collectives and messages of a rank, and the one it waits in: what diagnostics print.

NNMPI_DEBUG and NNMPI_TIMEOUT say how closely ranks are watched.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

KEPT = 20  # calls
START = 300.0  # seconds in which all ranks start, unless NNMPI_TIMEOUT says otherwise


class DebugSettings(NamedTuple):
    """The settings of diagnostics that the environment asks for."""

    compare: bool = False  # whether the ranks compare their calls before each collective
    timeout: float = math.inf  # seconds that a rank may wait in one call
    start: float = START  # and for all ranks to start

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """From NNMPI_DEBUG=collectives and NNMPI_TIMEOUT=seconds."""
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
    """A call as it is made again and again: without its number and its place."""

    comm: str
    operation: str
    algorithm: str
    dtype: np.dtype[Any] | None
    elements: int
    root: int

    @property
    def bytes(self) -> int:
        return 0 if self.dtype is None else self.elements * self.dtype.itemsize


# What is kept of a call: the operation, its number, the code that called it, and the instruction
# there. A LoggedCall is made of it when it is printed, which takes longer than a small message.
CallRecord: TypeAlias = tuple[CallSignature, int, CodeType, int]


class LoggedCall(NamedTuple):
    """One collective or message, as one rank called it."""

    comm: str
    number: int  # of the collectives of that communicator, from 1; -1 for a message
    operation: str
    algorithm: str
    dtype: np.dtype[Any] | str | None  # a name where the call is another rank's
    elements: int
    root: int  # or the other rank of a message, or the first element of a part of shared memory
    file: str
    line: int

    @classmethod
    def of(cls, record: CallRecord) -> Self:
        signature, number, code, at = record
        lines = (line for start, end, line in code.co_lines() if start <= at < end and line)
        return cls(signature.comm, number, *signature[1:], code.co_filename, next(lines, 0))

    @property
    def text(self) -> str:
        """The call in words, without its place."""
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
    """The number of collectives that this rank has called on one communicator."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members, self.calls = tuple(members), 0  # members: ranks of the whole job


class CallLog:
    """The last calls of this rank, and the one it waits in. Other threads read it.

    It is no log of a step: it is there in every run, for reports of ranks that hang or differ, and
    says where in a program each call was made.
    """

    def __init__(self, settings: DebugSettings | None = None) -> None:
        self.settings = settings or DebugSettings()
        self.records: deque[CallRecord] = deque(maxlen=KEPT)
        self.counters: dict[str, CallCounter] = {}
        self.waits: tuple[CallRecord, float] | None = None

    @property
    def calls(self) -> list[LoggedCall]:
        """The last calls, the latest at the end."""
        return [*map(LoggedCall.of, tuple(self.records))]

    @contextmanager
    def during(self, call: CallRecord) -> Iterator[None]:
        """Within it other ranks may hold this one up, in this call."""
        self.waits = call, time.monotonic()
        try:
            yield
        finally:
            self.waits = None

    def counter(self, comm: str, members: Sequence[int]) -> CallCounter:
        """A new counter of a communicator; kept after that is freed: others may wait in it."""
        self.counters[comm] = counter = CallCounter(members)
        return counter

    def participants(self, call: LoggedCall) -> tuple[int, ...]:
        """The ranks of the whole job that a collective needs, or the other rank of a message."""
        members = self.counters[call.comm].members if call.comm in self.counters else ()
        return members if call.number >= 0 else (members[call.root],)

    def waiting(self) -> tuple[LoggedCall, float] | None:
        """The call that this rank is in, and for how many seconds."""
        waits = self.waits
        return None if waits is None else (LoggedCall.of(waits[0]), time.monotonic() - waits[1])
