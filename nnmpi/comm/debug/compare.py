"""Compares the ranks' next calls before each collective, under NNMPI_DEBUG=collectives.

MPI does not: two ranks that sum different types, or call collectives in a different order, get
garbage and an exit status of 0.
"""

import json
from collections.abc import Iterable

import numpy as np

from nnmpi.collectives.algorithms import ALL_GATHERS
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.call_log import LoggedCall
from nnmpi.comm.steps import OperationQueue, Steps
from nnmpi.comm.transport.base import TAGS, Ledger, Transport

NBYTES = 400  # bytes of an encoded call
LONGEST_NAME, LONGEST_FILE = 80, 150  # longer ones keep their last characters


class MismatchError(RuntimeError):
    """Raised on all ranks when they do not call the same collective."""


class CallComparison:
    """Compares each collective that this rank calls with those of the other ranks of a
    communicator, by messages on a transport of its own."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport.duplicate(Ledger(transport.size))
        self._interpreter = Interpreter(self._transport)
        self._queue = OperationQueue()

    def free(self) -> None:
        """Frees the transport; collective."""
        self._transport.free()

    def steps(self, call: LoggedCall, blocks: bool) -> Steps:
        """Compares a call over all ranks: a generator of the requests to wait for.

        It completes if all ranks make this call; otherwise it raises the same MismatchError on all
        of them. Lines of code are not compared: in correct programs, ranks may call from different
        lines.
        """
        return self._queue.add(self._steps(call, blocks))

    def _steps(self, call: LoggedCall, blocks: bool) -> Steps:
        texts = np.zeros(self._transport.size, f"S{NBYTES}")
        texts[self._transport.rank] = encode(call)
        gather, tag = ALL_GATHERS["halving"], call.number % TAGS
        yield from self._interpreter.steps(gather, texts.view(np.uint8), tag, blocks)
        calls = [LoggedCall(*json.loads(text)) for text in texts.tolist()]
        if len({_compared(c) for c in calls}) > 1:
            raise MismatchError(difference(calls))


def encode(call: LoggedCall) -> bytes:
    """Encodes the call as JSON for another rank, in at most NBYTES bytes."""
    file = call.file.encode("ascii", "replace").decode()
    short = call._replace(comm=call.comm[-LONGEST_NAME:], file=file[-LONGEST_FILE:])
    return json.dumps(short, default=str).encode()


def difference(calls: list[LoggedCall]) -> str:
    """Returns a text that names the ranks that make each call, smaller groups of ranks first."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for r, call in enumerate(calls):
        groups.setdefault(_compared(call), []).append(r)
    texts = []
    for ranks in sorted(groups.values(), key=len):
        locations = sorted({calls[r].location for r in ranks})
        where = " or ".join(locations[:3]) + " or elsewhere" * (len(locations) > 3)
        verb = "call" if len(ranks) > 1 else "calls"
        texts.append(f"{name_ranks(ranks)} {verb} {calls[ranks[0]].text} ({where})")
    first = calls[0]
    return (
        f"the ranks of Comm {first.comm} differ in call {first.number}: "
        f"{texts[0]}, while {'; '.join(texts[1:])}"
    )


def name_ranks(ranks: Iterable[int]) -> str:
    """Rank numbers as text: `rank 2`, `ranks 0, 1 and 3`."""
    *others, last = (str(r) for r in ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _compared(call: LoggedCall) -> tuple[object, ...]:
    return call[: LoggedCall._fields.index("file")]
