"""Exchanges within a pass, between ranks that share layers or sequences (tp, cp), in three ways:

record    exchanges become calls of the list, and nothing is sent
tape      autograd runs the pass: arrays are sent, and copies of them are kept
replay    while the list is compared with the tape, it gets these copies, and nothing is sent, since
          another rank may not have been able to record its pass; afterwards arrays are sent, and
          so they are by all replays on a GPU, which begin when all ranks have captured a pass
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nnmpi.arrays.backend import Array, to_host
from nnmpi.arrays.meta import MetaArray
from nnmpi.arrays.meta.log import call_log, log_call
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.comm import Comm
from nnmpi.nn.passes import variables_set
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.wire import all_reduce_with_room, wire_around, wire_for


def wires(around: Callable[[Comm, Any], Any] | None) -> AbstractContextManager[None]:
    """Returns a context in which `around` makes the wires within passes; None: the usual ones."""
    return variables_set((wire_around, around))


class Notes:
    """Arrays that a rank sent and received in a pass by autograd, for a replay to compare."""

    def __init__(self) -> None:
        self._arrived, self._sent, self._is_same = deque[Array](), deque[Array](), True

    @property
    def is_same(self) -> bool:
        """True if the replay would have sent and received the arrays of autograd's pass."""
        return self._is_same and not (self._sent or self._arrived)

    def add_sent(self, array: Array) -> None:
        """Keeps a copy of an array that autograd's pass sends."""
        self._sent.append(array.copy())

    def add(self, array: Array) -> None:
        """Keeps a copy of an array that autograd's pass has received."""
        self._arrived.append(array.copy())

    def check_sent(self, array: Array) -> None:
        """Compares what the replay would send with what autograd sent next."""
        self._is_same &= bool(self._sent) and same_bits(array, self._sent.popleft())

    def write_next(self, array: Array) -> None:
        """Writes the next array that autograd's pass received into `array`."""
        if self._arrived:
            array[...] = self._arrived.popleft()
        else:
            self._is_same = False

    def noting(self) -> AbstractContextManager[None]:
        """A context for autograd's pass, which keeps what it sends and receives."""
        return wires(lambda comm, array: _NotingWire(comm, self))

    def recalling(self) -> AbstractContextManager[None]:
        """A context for a replay, which gets kept copies and sends nothing."""
        return wires(lambda comm, array: _RecallingWire(comm, self))


class NoNotes(Notes):
    """Notes of a pass that a device has captured: in its replay, too, ranks exchange arrays."""

    def noting(self) -> AbstractContextManager[None]:
        return nullcontext()

    recalling = noting


def same_bits(a: Array | None, b: Array | None) -> bool:
    """Returns True if two arrays have the same bits, or both are None."""
    if a is None or b is None:
        return a is b
    return to_host(a).tobytes() == to_host(b).tobytes()


def _own_part(buffer: Array, comm: Comm, parts: Sequence[int] | None) -> Array:
    """Returns this rank's slice of an all-gather's buffer; `parts` has the lengths."""
    row = buffer.reshape(-1)
    lengths = parts or [row.size // comm.size] * comm.size
    start = sum(lengths[: comm.rank])
    return row[start : start + lengths[comm.rank]]


# ---- calls of a list


def all_reduce_call(comm: Comm, row: Array, algorithm: str) -> None:
    with waiting("tensor"):
        all_reduce_with_room(wire_for(comm, row), row, algorithm)


def all_gather_call(comm: Comm, buffer: Array, algorithm: str, parts: Sequence[int] | None) -> None:
    with waiting("tensor"):
        wire_for(comm, buffer).all_gather(buffer, algorithm, parts)


def start_call(work: "_LoggedWork", name: str, comm: Comm, array: Array, *arguments: Any) -> None:
    work.started = getattr(wire_for(comm, array), name)(array, *arguments)


def _wait(work: "_LoggedWork", array: Array) -> None:
    """Waits for a transfer; `array` is an argument so that its memory gets no other use before."""
    with waiting("tensor"):
        work.started.wait()


class _LoggedWork:
    """A transfer in a recorded pass: one call starts it, another waits."""

    started: Any

    def __init__(self, array: Any) -> None:
        self._array, self._number = array, len(call_log.get() or ())

    def __eq__(self, other: object) -> bool:
        """True for the same transfer in another recording: equal in the order of calls."""
        return isinstance(other, _LoggedWork) and other._number == self._number

    __hash__ = None  # type: ignore[assignment]

    def wait(self) -> None:
        """Records a call that waits for the transfer."""
        log_call(_wait, self, self._array)


class LoggedWire:
    """Stands in for communication while a pass is recorded: an exchange becomes a call in the list.
    Numbers on the host are refused unless `takes_numbers`: a replay would need those of its
    own step."""

    takes_numbers = False

    def __init__(self, comm: Comm, array: Any) -> None:
        if not self.takes_numbers and not isinstance(array, MetaArray):
            refuse("an exchange of numbers on the host")  # of counts, or of moments
        self._comm = comm

    def all_reduce(self, row: Any, algorithm: str) -> None:
        log_call(all_reduce_call, self._comm, row, algorithm)

    def all_gather(
        self, buffer: Any, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> None:
        log_call(all_gather_call, self._comm, buffer, algorithm, parts)

    def _start(self, name: str, array: Any, *arguments: Any) -> _LoggedWork:
        work = _LoggedWork(array)
        log_call(start_call, work, name, self._comm, array, *arguments)
        return work

    def start_reduce_scatter(self, row: Any, *arguments: Any) -> _LoggedWork:
        return self._start("start_reduce_scatter", row, *arguments)

    def isend(self, array: Any, *arguments: Any) -> _LoggedWork:
        return self._start("isend", array, *arguments)

    def irecv(self, array: Any, *arguments: Any) -> _LoggedWork:
        return self._start("irecv", array, *arguments)


# ---- beside the tape


class _NotingWork:
    """A transfer that keeps a copy of its array for a replay."""

    def __init__(self, work: Any, array: Array, notes: Notes) -> None:
        self._work, self._array, self._notes = work, array, notes

    def wait(self) -> None:
        self._work.wait()
        self._notes.add(self._array)


class _NotingWire:
    """Exchanges arrays as usual, and keeps copies for a replay."""

    def __init__(self, comm: Comm, notes: Notes) -> None:
        self._comm, self._notes = comm, notes

    def all_reduce(self, row: Array, algorithm: str) -> None:
        sent = row.copy()
        self._comm.all_reduce(row, algorithm)  # it may raise NoRoomError, and is called again
        self._notes.add_sent(sent)
        self._notes.add(row)

    def all_gather(
        self, buffer: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> None:
        self._notes.add_sent(_own_part(buffer, self._comm, parts))
        self._comm.all_gather(buffer, algorithm, parts)
        self._notes.add(buffer)

    def start_reduce_scatter(self, row: Array, *arguments: Any) -> _NotingWork:
        self._notes.add_sent(row)
        return _NotingWork(self._comm.start_reduce_scatter(row, *arguments), row, self._notes)

    def isend(self, array: Array, *arguments: Any) -> Any:
        self._notes.add_sent(array)
        return self._comm.isend(array, *arguments)

    def irecv(self, array: Array, *arguments: Any) -> _NotingWork:
        return _NotingWork(self._comm.irecv(array, *arguments), array, self._notes)


class _RecallingWork:
    def __init__(self, array: Array | None, notes: Notes) -> None:
        self._array, self._notes = array, notes

    def wait(self) -> None:
        if self._array is not None:
            self._notes.write_next(self._array)


class _RecallingWire:
    """Stands for communication in a compared replay, with kept copies."""

    def __init__(self, comm: Comm, notes: Notes) -> None:
        self._comm, self._notes = comm, notes

    def all_reduce(self, row: Array, algorithm: str) -> None:
        self._notes.check_sent(row)
        self._notes.write_next(row)

    def all_gather(
        self, buffer: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> None:
        self._notes.check_sent(_own_part(buffer, self._comm, parts))
        self._notes.write_next(buffer)

    def start_reduce_scatter(self, row: Array, *arguments: Any) -> _RecallingWork:
        self._notes.check_sent(row)
        return _RecallingWork(row, self._notes)

    def isend(self, array: Array, *arguments: Any) -> _RecallingWork:
        self._notes.check_sent(array)
        return _RecallingWork(None, self._notes)

    def irecv(self, array: Array, *arguments: Any) -> _RecallingWork:
        return _RecallingWork(array, self._notes)
