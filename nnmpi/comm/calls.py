"""Collectives of one communicator: logged, compared between ranks if requested, and carried out."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import CodeType, ModuleType
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy import ndarray

from nnmpi.addons import Table
from nnmpi.collectives.algorithms import ALL_GATHERS
from nnmpi.collectives.combine import rooted
from nnmpi.collectives.step import Algorithm
from nnmpi.comm.allreduce.dispatch import PreparedSum
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.arguments import (
    Array,
    Parts,
    algorithm_of,
    as_integers,
    bounds_of,
    flat,
    parts_text,
    put_back,
)
from nnmpi.comm.call_log import CallRecord, CallSignature, LoggedCall, first_tag
from nnmpi.comm.debug.compare import CallComparison
from nnmpi.comm.progress import Progress, Work
from nnmpi.comm.steps import Copies, Steps
from nnmpi.comm.transport.base import (
    PENDING,
    AbortedError,
    OtherRankError,
    Transport,
)

COMM_CALLERS: Table[ModuleType] = Table("comm_callers")
"""Packages of add-ons that call collectives for a program."""

PACKAGES = "nnmpi.comm", *COMM_CALLERS.where.values()  # their frames are not the caller's
LONGEST_ERROR = 500  # bytes of an error message that other ranks get

Names: TypeAlias = str | tuple[str, ...]

PreparedSums: TypeAlias = dict[tuple[str, int, np.dtype[Any]], PreparedSum]
"""Prepared sums by algorithm, length and type."""


class CallRunner:
    """Logs and carries out the calls of this rank on one transport. `purpose` is that of the next
    collective, such as "maximum": a part of that call, the same on all ranks."""

    def __init__(self, comm: str, transport: Transport, progress: Progress) -> None:
        self.comm, self.transport, self.progress = comm, transport, progress
        self._log = log = progress.log
        self._counter = log.counter(comm, transport.members)
        self._caller: CodeType | None = None
        self.purpose = ""
        self.comparison = CallComparison(transport) if log.settings.compare else None

    def log(
        self, operation: str, algorithm: str = "", count: int = 0, dtype: Any = None, root: int = -1
    ) -> CallRecord:
        """Logs a collective; returns the record, with the line of code that called it."""
        return self.record(CallSignature(self.comm, operation, algorithm, dtype, count, root))

    def record(self, signature: CallSignature, packages: Names = PACKAGES) -> CallRecord:
        """Logs a collective; returns the record, with the line of code outside `packages`."""
        self._counter.calls = number = self._counter.calls + 1
        call = record_of(signature, number, 4, packages)
        self._log.records.append(call)
        return call

    def described(self, signature: CallSignature) -> CallSignature:
        how, self.purpose = f"{signature.algorithm}, {self.purpose}", ""
        return signature._replace(algorithm=how)

    def tag(self, call: CallRecord) -> int:
        """Returns the tag of the messages of a collective, which all ranks find without agreement:
        its number sets it apart from other calls in progress, its signature from ranks that make
        another call. These then wait for each other, until a watchdog compares their logs."""
        return first_tag(call[0], self.transport.marks) + call[1] % PENDING

    def compared(self, steps: Steps, call: CallRecord, blocks: bool) -> Steps:
        """Makes an operation that first compares `call` over all ranks, and raises MismatchError if
        it differs; then it carries out `steps`. With `blocks`, it may block inside MPI."""
        assert self.comparison is not None
        return chain(self.comparison.steps(LoggedCall.of(call), blocks), steps)

    def try_short_sum(self, array: Array, algorithm: str, prepared: PreparedSums) -> bool:
        """Sums a small array by one call of compiled code and returns True; False if it cannot: the
        array must be contiguous, `prepared` have compiled code for its length and type, no
        operation be in progress, and calls not be compared (NNMPI_DEBUG=collectives).

        The call log gets the line of code two frames above this method, in the user's program.
        """
        is_busy = self.progress.works or self.progress.error is not None
        if type(array) is not ndarray or not array.flags.carray or is_busy:
            return False
        known = prepared.get((algorithm, array.size, array.dtype))
        if known is None or known.short is None or self.comparison is not None:
            return False
        # a small sum takes as long as a few Python calls: search the stack for new callers only
        frame = sys._getframe(2)
        if frame.f_code is self._caller:  # the caller of last time: known to be outside PACKAGES
            self._counter.calls = number = self._counter.calls + 1
            call = known.signature, number, frame.f_code, frame.f_lasti
            self._log.records.append(call)
        else:
            call = self.record(known.signature)
            self._caller = call[2]
        if not known.short.call(array):
            with self._log.during(call):
                known.short.wait(array.reshape(-1))
        return True

    def finish(self, steps: Steps, call: CallRecord) -> None:
        """Carries out a collective's generator of requests to its end."""
        if self.comparison is not None:
            steps = self.compared(steps, call, not self.progress.works)
        self.progress.finish(steps, call, self.transport)

    def start(self, steps: Steps, call: CallRecord, copies: Copies = None) -> Work:
        """Starts a collective, and returns its Work; `copies` are those of a device's array."""
        if self.comparison is not None:
            steps = self.compared(steps, call, blocks=False)
        return Work(steps, self.transport, self.progress, call, copies)

    def steps_of(
        self,
        interpreter: Interpreter,
        operation: str,
        name: str,
        array: Array,
        parts: Parts = None,
        starts: bool = False,
        root: int = -1,
        plan: Algorithm | None = None,
    ) -> tuple[Steps, CallRecord]:
        """Returns a collective on `array` as a generator of the requests it waits for, and its log
        record.

        The algorithm is `plan` if given, else the one called `name` of the Collective `operation`.
        `parts` are the lengths of the ranks' parts, if they are not about equal. `starts` means
        that the caller does not wait, so that no step may block inside MPI.
        """
        plan, adds = (plan, True) if plan else algorithm_of(operation, name)
        row, bounds = flat(array, operation), None
        if parts is not None:
            bounds = bounds_of(parts, row.size, self.transport.size, operation)
            name = f"{name}, {parts_text(parts)}"
        signature = CallSignature(self.comm, operation, name, row.dtype, row.size, root)
        call = self.record(self.described(signature) if self.purpose else signature)
        data = row if adds else as_integers(row)
        blocks = not starts and not self.progress.works
        plan = plan if root < 0 else rooted(plan, root)
        moves = interpreter.plan(plan, bounds or data.size, data.dtype)
        steps = interpreter.carry_out(moves, data, self.tag(call), blocks)
        return steps if row is array else put_back(steps, row, array), call

    def agree(self, error: BaseException | None, interpreter: Interpreter) -> None:
        """Raises an error on all ranks if any rank passes one; collective. The first such rank
        raises its own error, all others OtherRankError with its text, which all ranks gather."""
        rank, size = self.transport.rank, self.transport.size
        text = "" if error is None else str(error).strip() or type(error).__name__
        texts = np.zeros(size, f"S{LONGEST_ERROR}")
        texts[rank] = text.encode(errors="replace")
        row, gather = texts.view(np.uint8), ALL_GATHERS["halving"]
        try:
            self.finish(*self.steps_of(interpreter, "agree", "halving", row, plan=gather))
        except AbortedError as aborted:  # a rank that had all texts earlier has raised and aborted
            if error is not None:
                raise error  # noqa: B904
            raise aborted from None
        failed = np.flatnonzero(texts != b"")
        if failed.size:
            first = failed[0]
            if first == rank and error is not None:
                raise error
            raise OtherRankError(f"rank {first}: {texts[first].decode(errors='ignore')}") from error

    def barrier(self, call: CallRecord) -> None:
        """Returns when all ranks have called it; pending operations go on meanwhile."""
        self.finish(self._barrier(), call)

    def _barrier(self) -> Steps:
        yield [self.transport.ibarrier()]

    @contextmanager
    def collective(self, call: CallRecord) -> Iterator[None]:
        """A context for blocking MPI calls that all ranks make, which do not move pending
        operations; its barrier keeps these moving until all ranks have come."""
        self.barrier(call)
        with self._log.during(call):
            yield

    def free(self) -> None:
        """Frees the transport; collective."""
        if self.comparison is not None:
            self.comparison.free()
        self.transport.free()
        freed: Any = FreedObject(f"Comm {self.comm}")
        self._counter = freed


def record_of(
    signature: CallSignature, number: int, depth: int = 3, packages: Names = PACKAGES
) -> CallRecord:
    """Returns the log record of a call, with the code location of the innermost frame outside
    `packages`; the first `depth` frames are known to be inside."""
    try:
        frame = sys._getframe(depth)
    except ValueError:  # fewer frames: the interpreter itself calls, for example at exit
        frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith(packages) and frame.f_back is not None:
        frame = frame.f_back
    return signature, number, frame.f_code, frame.f_lasti


class FreedObject:
    """A stand-in for a freed object that raises RuntimeError on every use: MPI would end the
    process, and freed memory or threads would not notice."""

    def __init__(self, label: str) -> None:
        self._label = label

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError(f"{self._label} was freed, and cannot be used any more: make a new one")

    __getattr__ = __getitem__ = __setitem__ = __len__ = __array__ = _refuse
