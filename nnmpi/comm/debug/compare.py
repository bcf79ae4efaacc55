"""Compares the calls of ranks: of those that wait for each other, and, under
NNMPI_DEBUG=collectives, of all ranks before each collective.

MPI does not: two ranks that sum different types, or call collectives in a different order, get
garbage and an exit status of 0.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from nnmpi.collectives.algorithms import ALL_GATHERS
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.call_log import LoggedCall
from nnmpi.comm.progress import Progress
from nnmpi.comm.steps import OperationQueue, Steps
from nnmpi.comm.transport.base import TAGS, Ledger, Transport

NBYTES = 400  # bytes of an encoded call
LONGEST_NAME, LONGEST_FILE = 80, 150  # longer ones keep their last characters


class MismatchError(RuntimeError):
    """Raised on all ranks when they do not call the same collective."""


class CallComparison:
    """Compares each collective of this rank with the others', on its own transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport.duplicate(Ledger(transport.size))
        self._interpreter = Interpreter(self._transport)
        self._queue = OperationQueue()

    def free(self) -> None:
        """Frees the transport; collective."""
        self._transport.free()

    def steps(self, call: LoggedCall, blocks: bool) -> Steps:
        """Compares a call over all ranks, and raises the same MismatchError on all if it differs.
        Lines of code are not compared: correct programs may call from different lines."""
        return self._queue.add(self._steps(call, blocks))

    def _steps(self, call: LoggedCall, blocks: bool) -> Steps:
        texts = np.zeros(self._transport.size, f"S{NBYTES}")
        texts[self._transport.rank] = encode(call)
        gather, tag = ALL_GATHERS["halving"], call.number % TAGS
        yield from self._interpreter.steps(gather, texts.view(np.uint8), tag, blocks)
        calls = [LoggedCall(*json.loads(text)) for text in texts.tolist()]
        if len({_compared(c) for c in calls}) > 1:
            raise MismatchError(difference(dict(enumerate(calls))))


def encode(call: LoggedCall) -> bytes:
    """Encodes the call as JSON for another rank, in at most NBYTES bytes."""
    file = call.file.encode("ascii", "replace").decode()
    short = call._replace(comm=call.comm[-LONGEST_NAME:], file=file[-LONGEST_FILE:])
    return json.dumps(short, default=str).encode()


def first_difference(
    calls: Sequence[LoggedCall], others: Sequence[LoggedCall]
) -> tuple[LoggedCall, LoggedCall] | None:
    """Returns the first collective that two ranks with these logs have called differently: the
    call of the one and that of the other; None if the logs agree as far as they overlap."""
    known = {call[:2]: call for call in calls if call.number > 0}
    for other in others:
        call = known.get(other[:2])
        if call is not None and _compared(call) != _compared(other):
            return call, other
    return None


def mismatch(ranks: Mapping[int, Progress]) -> MismatchError | None:
    """Returns the error that names the first call in which logs of threads differ, or None."""
    logs = {r: progress.last_calls() for r, progress in ranks.items()}
    for log, other in combinations(logs.values(), 2):
        if pair := first_difference(log, other):
            at = pair[0][:2]
            calls = {r: call for r, log in logs.items() for call in log if call[:2] == at}
            return MismatchError(difference(calls))
    return None


def difference(calls: Mapping[int, LoggedCall]) -> str:
    """Returns a text that names the ranks that make each call, smaller groups of ranks first."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for r, call in sorted(calls.items()):
        groups.setdefault(_compared(call), []).append(r)
    texts = []
    for ranks in sorted(groups.values(), key=len):
        locations = sorted({calls[r].location for r in ranks})
        where = " or ".join(locations[:3]) + " or elsewhere" * (len(locations) > 3)
        verb = "call" if len(ranks) > 1 else "calls"
        texts.append(f"{name_ranks(ranks)} {verb} {calls[ranks[0]].text} ({where})")
    first = calls[min(calls)]
    return (
        f"the ranks of Comm {first.comm} differ in call {first.number}: "
        f"{texts[0]}, while {'; '.join(texts[1:])}"
    )


def name_ranks(ranks: Iterable[int]) -> str:
    """Rank numbers as text: `rank 2`, `ranks 0, 1 and 3`."""
    *others, last = (str(r) for r in ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _compared(call: LoggedCall) -> tuple[object, ...]:
    return (*call[:4], str(call.dtype), *call[5:7])
