"""NNMPI_DEBUG=collectives: before each collective, the ranks compare what they are about to call.

MPI does not: two ranks that sum different types, or in a different order, get garbage and an exit
status of 0.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.algorithms import ALL_GATHERS
from nnmpi.comm.allreduce.interpreter import Runner, Steps
from nnmpi.comm.debug.call_log import Call, named
from nnmpi.comm.progress.turns import Turns
from nnmpi.comm.progress.work import Progress
from nnmpi.comm.transport.base import TAGS, Ledger, Transport

FINGERPRINT = np.dtype(
    [
        ("number", "i8"),
        ("elements", "i8"),
        ("root", "i8"),
        ("line", "i8"),
        ("operation", "S24"),
        ("algorithm", "S24"),
        ("dtype", "S24"),
        ("file", "S152"),
    ]
)
Fingerprints: TypeAlias = NDArray[np.void]


class MismatchError(RuntimeError):
    """The ranks do not call the same collective."""


class Check:
    """Compares the calls of one communicator's ranks, by messages that meet no others."""

    def __init__(self, wire: Transport, progress: Progress) -> None:
        self._wire, self._progress = wire.duplicate(Ledger(wire.size)), progress
        self._runner = Runner(self._wire)
        self._turns = Turns()

    def free(self) -> None:
        """Gives back the messages' way; every rank calls it."""
        self._wire.free()

    def compare(self, call: Call) -> None:
        """Returns if all ranks make this call; else raises the same MismatchError on all of them.

        The line that calls may be another on each rank: there are programs in which that is right.
        """
        self._progress.finish(self._steps(call, self._progress.idle), call, self._wire)

    def before(self, steps: Steps, call: Call) -> Steps:
        """The same as the first steps of the call itself, for one that may not wait."""
        yield from self._steps(call, False)
        yield from steps

    def _steps(self, call: Call, blocks: bool) -> Steps:
        return self._turns.take(self._compare(call, blocks))

    def _compare(self, call: Call, blocks: bool) -> Steps:
        rows = np.zeros(self._wire.size, FINGERPRINT)
        rows[self._wire.rank] = _fingerprint(call)
        gather, tag = ALL_GATHERS["halving"], call.number % TAGS
        yield from self._runner.steps(gather, rows.view(np.uint8), tag, blocks)
        calls = [_call(call.comm, row) for row in rows]
        if len({_compared(c) for c in calls}) > 1:
            raise MismatchError(difference(calls))


def difference(calls: list[Call]) -> str:
    """Who calls what, the few before the many."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for r, call in enumerate(calls):
        groups.setdefault(_compared(call), []).append(r)
    told = []
    for ranks in sorted(groups.values(), key=len):
        sites = sorted({calls[r].site for r in ranks})
        where = " or ".join(sites[:3]) + " or elsewhere" * (len(sites) > 3)
        verb = "call" if len(ranks) > 1 else "calls"
        told.append(f"{named(ranks)} {verb} {calls[ranks[0]].text} ({where})")
    first = calls[0]
    return (
        f"the ranks of Comm {first.comm} differ in call {first.number}: "
        f"{told[0]}, while {'; '.join(told[1:])}"
    )


def _compared(call: Call) -> tuple[object, ...]:
    return call[: Call._fields.index("file")]


def _fingerprint(call: Call) -> tuple[object, ...]:
    dtype = "" if call.dtype is None else str(call.dtype)
    values = {**call._asdict(), "dtype": dtype, "file": call.file[-152:]}
    return tuple(
        v.encode(errors="replace") if isinstance(v, str) else v
        for v in (values[name] for name in FINGERPRINT.names or ())
    )


def _call(comm: str, row: np.void) -> Call:
    """What another rank calls; its words may have been cut off."""
    number, elements, root, line = (
        int(row[name]) for name in ("number", "elements", "root", "line")
    )
    words = ("operation", "algorithm", "dtype", "file")
    operation, algorithm, dtype, file = (row[name].decode(errors="replace") for name in words)
    return Call(comm, number, operation, algorithm, dtype or None, elements, root, file, line)
