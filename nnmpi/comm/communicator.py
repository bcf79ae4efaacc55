"""Comm: ranks that work together, and everything they can do together."""

import operator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from nnmpi.collectives import algorithms
from nnmpi.collectives.step import Algorithm, cut, rooted
from nnmpi.comm import agree
from nnmpi.comm.allreduce import autotune
from nnmpi.comm.allreduce.dispatch import NAMES, TOGETHER, Ways
from nnmpi.comm.allreduce.interpreter import Array, Runner, Steps
from nnmpi.comm.arrays import check_array, flat, pieces, put_back, words
from nnmpi.comm.debug.call_log import Call, Guard, site
from nnmpi.comm.debug.calls import Calls
from nnmpi.comm.progress.helper_thread import background
from nnmpi.comm.progress.work import Progress, Work
from nnmpi.comm.shared_memory import Common, Shared, room
from nnmpi.comm.transport.base import TAGS, AbortedError, Ledger, NoRoomError, Transport

KNOWN = frozenset(NAMES)


class Comm:
    """`size` ranks, of which this is `rank`.

    Collectives work in place, on arrays of one length and type on all ranks, and every rank calls
    the same ones in the same order; NNMPI_DEBUG=collectives finds out where that is not so, and
    without it MPI may well give wrong sums silently. The same algorithm on the same ranks gives the
    same bits. A rank uses its Comms from one thread.
    """

    def __init__(
        self, transport: Transport, name: str = "world", progress: Progress | None = None
    ) -> None:
        self.rank, self.size, self.name = transport.rank, transport.size, name
        self._progress = progress or Progress(Guard())
        self._talk, self._wire = transport, transport.duplicate()
        self._runner = Runner(self._wire)
        self._ways = Ways(self._wire, self._runner)
        self._choice: autotune.Choice | None = None
        self._parts = 0
        self._calls = Calls(name, self._wire, self._progress)

    @property
    def any_thread(self) -> bool:
        """Whether other threads than the rank's own may push messages (see `background`)."""
        return self._wire.any_thread

    @property
    def ledger(self) -> Ledger:
        """Messages and bytes of this rank so far, by peer."""
        return self._wire.ledger

    def all_reduce(self, array: Array, algorithm: str = "auto") -> None:
        """Replaces the array on every rank by its sum over the ranks."""
        self._progress.finish(*self._all_reduce(array, algorithm, starts=False), self._wire)

    def start(self, array: Array, algorithm: str = "auto") -> Work:
        """Begins an all-reduce. The array has to be left alone until the work is complete.

        The first `auto` of a Comm, and the first `shared` of a size, wait for all ranks to come.
        """
        return self._calls.work(*self._all_reduce(array, algorithm, starts=True))

    def reduce_scatter(self, array: Array, algorithm: str = "ring") -> Array:
        """Sums this rank's chunk of the array over the ranks, and returns it: a view of the array.

        The rest of the array is used up: afterwards it means nothing.
        """
        plan = _named(algorithms.REDUCE_SCATTERS, algorithm, "reduce_scatter")
        row = flat(array, "reduce_scatter")
        if not array.flags.c_contiguous:
            raise ValueError(
                "reduce_scatter takes an array in C order: copy with ascontiguousarray"
            )
        self._in_place("reduce_scatter", algorithm, plan, row)
        return row[self.chunk(row.size)]

    def all_gather(self, array: Array, algorithm: str = "ring") -> None:
        """Fills the array, of which every rank brings its own chunk, with the chunks of all."""
        plan = _named(algorithms.ALL_GATHERS, algorithm, "all_gather")
        self._in_place("all_gather", algorithm, plan, array, moves_only=True)

    def broadcast(self, array: Array, root: int = 0, algorithm: str = "tree") -> None:
        """Replaces the array on every rank by that of `root`."""
        root = self._rank(root)
        plan = rooted(_named(algorithms.BROADCASTS, algorithm, "broadcast"), root)
        self._in_place("broadcast", algorithm, plan, array, root, moves_only=True)

    def reduce(self, array: Array, root: int = 0, algorithm: str = "tree") -> None:
        """Replaces the array on `root` by its sum over the ranks; the others keep theirs."""
        root = self._rank(root)
        plan = rooted(_named(algorithms.REDUCES, algorithm, "reduce"), root)
        flat(array, "reduce")
        own = array if self.rank == root else np.array(array)
        self._in_place("reduce", algorithm, plan, own, root)

    def chunk(self, n: int) -> slice:
        """Which of n elements belong to this rank in `reduce_scatter` and `all_gather`."""
        return slice(cut(n, self.size, self.rank), cut(n, self.size, self.rank + 1))

    def carry_out(self, algorithm: Algorithm, array: Array) -> None:
        """Carries out a plan of your own, proved by `nnmpi.collectives.verify.verify(plan, p)`.

        Make a plan once: what a rank does is worked out, and kept, for each.
        """
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"carry_out takes an Algorithm, not {type(algorithm).__name__}")
        rounds, chunks = algorithm.rounds(self.size), algorithm.chunks(self.size)
        name = f"{rounds} rounds, {chunks} chunks"
        self._in_place("carry_out", name, algorithm, array)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._calls.meet(self._calls.note("barrier"))

    def isend(self, array: Array, to: int, tag: int = 0) -> Work:
        """Begins to send. The array may change only when the work is complete."""
        to, tag = self._rank(to), _tag(tag)
        check_array(array, "isend")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        post = partial(self._talk.isend, to=to, tag=tag)
        call = Call(self.name, -1, "isend", "", array.dtype, array.size, to, *site(1))
        with self._progress.lock:
            posted = [post(part) for part in pieces(data, self._talk.piece)]
            return self._calls.work(iter([posted]), call)

    def irecv(self, array: Array, source: int, tag: int = 0) -> Work:
        """Begins to receive into the array, which must be as long as what is sent."""
        source, tag = self._rank(source), _tag(tag)
        row = flat(array, "irecv")
        post = partial(self._talk.irecv, source=source, tag=tag)
        call = Call(self.name, -1, "irecv", "", row.dtype, row.size, source, *site(1))
        with self._progress.lock:
            posted = [post(part) for part in pieces(row.view(np.uint8), self._talk.piece)]
            return self._calls.work(put_back(iter([posted]), row, array), call)

    def background(self, pause: float = 2e-4) -> AbstractContextManager[None]:
        """While it is open, a thread pushes forward what this rank has under way, on any Comm.

        It looks every `pause` seconds. Works may still be under way when it closes.
        """
        if not self._wire.any_thread:
            raise ValueError(
                "MPI was not started with THREAD_MULTIPLE, so no thread can push works forward: "
                "use --progress poll"
            )
        return background(self._progress, pause)

    def split(self, color: int | None, key: int | None = None) -> "Comm | None":
        """A Comm of the ranks with one color, in the order of their keys; None for color None."""
        color = None if color is None else operator.index(color)
        if color is not None and color < 0:
            raise ValueError(f"color {color} is below 0: use 0 or more, or None to stay out")
        with self._calls.together(self._calls.note("split")):
            part = self._talk.split(color, self.rank if key is None else key)
            self._parts += 1
            name = f"{self.name}/{self._parts}.{color}"
            return None if part is None else Comm(part, name, self._progress)

    def shared(self, n: int, dtype: Any) -> Shared:
        """Memory for sums of n numbers without any copying; every rank calls it."""
        n, dtype = room(n, dtype, "shared")
        with self._calls.together(self._calls.note("shared", "", n, dtype)):
            return Shared(self._ways.segments(n, dtype), n, self._calls)

    def common(self, n: int, dtype: Any) -> Common:
        """Memory for n numbers, one for all ranks of a node, zero at first; every rank calls it."""
        n, dtype = room(n, dtype, "common")
        call = self._calls.note("common", "", n, dtype)
        with self._calls.together(call):
            wire = self._ways.node_for(n * dtype.itemsize)
            name = f"{self.name}/common{call.number}"
            common = Common(Calls(name, wire, self._progress), n, dtype)
        common.meet()
        return common

    def node(self) -> tuple[int, ...]:
        """The ranks that share memory with this one, in order; every rank calls it."""
        with self._calls.together(self._calls.note("node")):
            return self._ways.levels().ranks

    def agree(self, error: BaseException | None) -> None:
        """Every rank calls it, with the error of what it has tried alone, or None; raises if any.

        The first rank that failed raises its own error, and all others OtherRankError, which tells
        what that was.
        """
        mine = agree.told(error)
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = len(mine)
        self._in_place(
            "agree", "halving", algorithms.ALL_GATHERS["halving"], lengths, moves_only=True
        )
        failed = np.flatnonzero(lengths)
        if failed.size:
            first = int(failed[0])
            text = np.resize(np.frombuffer(mine, np.uint8), lengths[first])
            try:
                self.broadcast(text, first)
            except AbortedError:  # whoever has heard it may end the job before the others have
                if self.rank != first:
                    raise
            raise agree.outcome(self.rank, first, error, text.tobytes())

    def free(self) -> None:
        """Gives back what the library holds for this Comm; every rank calls it, and then no more.

        Only who makes communicators by the hundred has to: an MPI has room for so many.
        """
        self._calls.meet(self._calls.note("free"))
        self._ways.free()
        self._calls.free()
        self._talk.free()

    def abort(self, message: str) -> None:
        """Ends all ranks of the job, saying why."""
        self._wire.abort(message)

    def _all_reduce(self, array: Array, algorithm: str, starts: bool) -> tuple[Steps, Call]:
        row = flat(array, "all_reduce")
        name = self._chosen(row.nbytes) if algorithm == "auto" else algorithm
        if name not in KNOWN:
            raise _unknown(algorithm, "all_reduce", ("auto", *NAMES))
        check = not starts or name in TOGETHER
        call = self._calls.note("all_reduce", name, row.size, row.dtype, check=check)
        if name in TOGETHER and self._ways.lacks_memory(name, row):
            try:
                self._make_memory(name, row, call)
            except NoRoomError:
                if algorithm != "auto" or self._choice is None:
                    raise
                self._choice = self._choice.without(name)
                return self._all_reduce(array, algorithm, starts)
        blocks = not starts and self._progress.idle
        steps = self._ways.steps(name, row, call.number % TAGS, starts, blocks)
        steps = self._calls.checked(steps, call, check)
        return steps if array.flags.c_contiguous else put_back(steps, row, array), call

    def _make_memory(self, name: str, row: Array, call: Call) -> None:
        with self._calls.together(call):
            self._ways.make_memory(name, row)

    def _chosen(self, nbytes: int) -> str:
        """What is likely to be the fastest for so many bytes; all ranks agree on it."""
        if self.size == 1:
            return "ring"
        if self._choice is None:
            with self._calls.together(self._calls.note("all_reduce", "auto")):
                with_own_ledger = self._wire.duplicate(Ledger(self.size))
                trial = Comm(with_own_ledger, f"{self.name}/trial", self._progress)
            self._choice = autotune.measure_choice(trial)
            trial.free()
        return self._choice.name(nbytes)

    def _in_place(
        self,
        operation: str,
        name: str,
        plan: Algorithm,
        array: Array,
        root: int = -1,
        moves_only: bool = False,
    ) -> None:
        row = flat(array, operation)
        call = self._calls.note(operation, name, row.size, row.dtype, root)
        data = words(row) if moves_only else row
        steps = self._runner.steps(plan, data, call.number % TAGS, self._progress.idle)
        self._progress.finish(put_back(steps, row, array), call, self._wire)

    def _rank(self, rank: int) -> int:
        rank = operator.index(rank)
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} of {self.size}: use 0 to {self.size - 1}")
        return rank


def _tag(tag: int) -> int:
    tag = operator.index(tag)
    if not 0 <= tag < TAGS:
        raise ValueError(f"tag {tag} is out of range: use 0 to {TAGS - 1}")
    return tag


def _named(family: Mapping[str, Algorithm], name: str, operation: str) -> Algorithm:
    if name not in family:
        raise _unknown(name, operation, tuple(family))
    return family[name]


def _unknown(name: str, operation: str, names: tuple[str, ...]) -> ValueError:
    return ValueError(f"{operation} has no algorithm {name!r}: choose one of {', '.join(names)}")
