"""What each rank remembers of its collectives, so that a mistake can be named."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np

REMEMBERED = 20
COMM = "nnmpi.comm"  # the package whose frames are left out of what a call site says


class Call(NamedTuple):
    """One collective, as one rank called it."""

    comm: str
    number: int  # counts the collectives of that communicator
    operation: str
    algorithm: str
    # its name would take longer to find than a small message; another rank is told the name
    dtype: np.dtype[Any] | str | None
    elements: int
    root: int  # of a message: the rank at its other end; of a part of shared memory: its start
    file: str
    line: int

    @property
    def text(self) -> str:
        """What is called, without where."""
        words = {
            "broadcast": "from rank",
            "irecv": "from rank",
            "reduce": "to rank",
            "isend": "to rank",
            "shared.all_reduce": "from element",
        }
        what = "" if self.dtype is None else f" of {self.elements:,} {self.dtype}"
        how = f" by {self.algorithm}" if self.algorithm else ""
        root = f" {words.get(self.operation, 'root rank')} {self.root}" if self.root >= 0 else ""
        return f"{self.operation}{what}{root}{how}"

    @property
    def site(self) -> str:
        file = os.path.relpath(self.file)
        return f"{self.file if file.startswith('..') else file}:{self.line}"

    def __str__(self) -> str:
        number = f"call {self.number} of" if self.number >= 0 else "a message of"
        return f"{self.text} ({number} Comm {self.comm}, {self.site})"


class Settings(NamedTuple):
    """How closely ranks are watched."""

    check: bool = False  # whether the ranks compare their calls before each collective
    timeout: float = math.inf  # seconds that a rank may wait in one call

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
        return cls(debug == "collectives", timeout)


class Group:
    """The ranks of one communicator, and how many collectives this rank has called on it."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members, self.number = tuple(members), 0  # members: their ranks in the whole job


class Guard:
    """The last calls of this rank, and the one it waits in. Other threads read it meanwhile."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.calls: deque[Call] = deque(maxlen=REMEMBERED)
        self.waits: tuple[Call, float] | None = None
        self.groups: dict[str, Group] = {}

    def enter(self, call: Call) -> None:
        """This rank may now be held up by others."""
        self.waits = (call, time.monotonic())

    def leave(self) -> None:
        """It is not any more."""
        self.waits = None

    @contextmanager
    def during(self, call: Call) -> Iterator[None]:
        """Around what holds this rank up and is not a Work."""
        self.enter(call)
        try:
            yield
        finally:
            self.leave()

    def group(self, name: str, members: Sequence[int]) -> Group:
        """Counts the calls of a new communicator; kept when that is gone, for those who wait."""
        return self.groups.setdefault(name, Group(members))

    def partners(self, call: Call) -> tuple[int, ...]:
        """Who takes part in a call of this rank, or is at the other end of its message."""
        members = self.groups[call.comm].members
        return members if call.number >= 0 else (members[call.root],)

    def waiting(self) -> tuple[Call, float] | None:
        """The call that holds this rank up, and for how many seconds it has."""
        waits = self.waits
        return None if waits is None else (waits[0], time.monotonic() - waits[1])

    def last(self) -> list[Call]:
        """The last calls, from the oldest on."""
        return list(self.calls)


def site(inside: int = 3) -> tuple[str, int]:
    """The file and line outside this package that called into it.

    `inside` calls up it was still inside, which saves making a frame for each: this is done for
    every collective.
    """
    try:
        frame = sys._getframe(inside)
    except ValueError:  # called by the interpreter itself, as at its end
        frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(COMM):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def named(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`."""
    *others, last = (str(r) for r in ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
