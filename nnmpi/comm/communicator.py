"""Comm: ranks, messages between them, and collectives."""

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from nnmpi import user_code
from nnmpi.collectives import algorithms
from nnmpi.collectives.step import Algorithm, cut, rooted
from nnmpi.comm import agree
from nnmpi.comm.allreduce import autotune
from nnmpi.comm.allreduce.dispatch import NAMES, NEED_SETUP, AllReduceDispatch
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.arguments import checked_tag, named, unknown
from nnmpi.comm.arrays import Array, as_integers, check_array, flat, put_back
from nnmpi.comm.call_log import Call, CallLog, call_site
from nnmpi.comm.calls import Calls
from nnmpi.comm.freed import Freed
from nnmpi.comm.parts import ALL_GATHER, REDUCE_SCATTER, Half, bounds_of, parts_text
from nnmpi.comm.progress.helper_thread import progress_thread
from nnmpi.comm.progress.steps import Steps
from nnmpi.comm.progress.work import Progress, Work
from nnmpi.comm.shared_memory import NodeMemory, SharedBuffer, checked_size
from nnmpi.comm.transport.base import TAGS, AbortedError, Ledger, NoRoomError, Transport, pieces

ALL_REDUCES = frozenset(NAMES)


class Comm:
    """`size` ranks, of which this is `rank`.

    Collectives work in place, on arrays of one length and type on all ranks, and every rank calls
    the same ones in the same order. Where ranks do not, MPI may give wrong sums silently, and
    NNMPI_DEBUG=collectives raises MismatchError. The same algorithm on the same ranks gives the
    same bits. A rank uses its Comms from one thread.
    """

    def __init__(
        self, transport: Transport, name: str = "world", progress: Progress | None = None
    ) -> None:
        self.rank, self.size, self.name = transport.rank, transport.size, name
        self._progress = progress or Progress(CallLog())
        # messages of the user and those of collectives must not match each other
        self._p2p, self._transport = transport, transport.duplicate()
        self._receiver = transport.receiver()
        self._interpreter = Interpreter(self._transport)
        self._dispatch = AllReduceDispatch(self._transport, self._interpreter)
        self._choice: autotune.Choice | None = None
        self._splits = 0
        self._calls = Calls(name, self._transport, self._progress)

    @property
    def any_thread(self) -> bool:
        """Whether several threads may call MPI (MPI_THREAD_MULTIPLE; see `progress_thread`)."""
        return self._transport.any_thread

    @property
    def ledger(self) -> Ledger:
        """Messages and bytes that this rank has sent and received, by peer."""
        return self._transport.ledger

    def all_reduce(self, array: Array, algorithm: str = "auto") -> None:
        """Replaces the array on every rank by its sum over the ranks."""
        self._calls.finish(*self._all_reduce(array, algorithm, starts=False))

    def start(self, array: Array, algorithm: str = "auto") -> Work:
        """Starts an all-reduce. The array must not be touched until the work is complete.

        The first `auto` and the first `mpi` of a Comm, and the first `shared` of a size, wait for
        all ranks.
        """
        return self._calls.start(*self._all_reduce(array, algorithm, starts=True))

    def reduce_scatter(
        self, array: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> Array:
        """Sums this rank's part of the array over the ranks, and returns it: a view of the array.

        `parts` are the lengths of all ranks' parts, in the order of the ranks; without them, parts
        are those of `chunk`. The rest of the array is overwritten with intermediate results.
        """
        check_array(array, "reduce_scatter")
        if not array.flags.c_contiguous:
            raise ValueError(
                "reduce_scatter takes an array in C order: copy with ascontiguousarray"
            )
        self._calls.finish(*self._half(REDUCE_SCATTER, array, algorithm, parts, starts=False))
        bounds = bounds_of(parts, array.size, self.size, "reduce_scatter")
        return np.asarray(array).reshape(-1)[bounds[self.rank] : bounds[self.rank + 1]]

    def start_reduce_scatter(
        self, array: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> Work:
        """Starts a reduce-scatter. When it is complete, this rank's part of the array is the sum.

        The array must not be touched until then.
        """
        return self._calls.start(*self._half(REDUCE_SCATTER, array, algorithm, parts, starts=True))

    def all_gather(
        self, array: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> None:
        """Fills the array, of which every rank contributes its part, with the parts of all.

        `parts` are as in `reduce_scatter`.
        """
        self._calls.finish(*self._half(ALL_GATHER, array, algorithm, parts, starts=False))

    def start_all_gather(
        self, array: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> Work:
        """Starts an all-gather. The array must not be touched until the work is complete."""
        return self._calls.start(*self._half(ALL_GATHER, array, algorithm, parts, starts=True))

    def broadcast(self, array: Array, root: int = 0, algorithm: str = "tree") -> None:
        """Replaces the array on every rank by that of `root`."""
        root = self._rank(root)
        plan = rooted(named(algorithms.BROADCASTS, algorithm, "broadcast"), root)
        self._in_place("broadcast", algorithm, plan, array, root, moves_only=True)

    def reduce(self, array: Array, root: int = 0, algorithm: str = "tree") -> None:
        """Replaces the array on `root` by its sum over the ranks; the others' arrays are kept."""
        root = self._rank(root)
        plan = rooted(named(algorithms.REDUCES, algorithm, "reduce"), root)
        flat(array, "reduce")
        own = array if self.rank == root else np.array(array)
        self._in_place("reduce", algorithm, plan, own, root)

    def chunk(self, n: int) -> slice:
        """Which of n elements are this rank's in `reduce_scatter` and `all_gather`."""
        return slice(cut(n, self.size, self.rank), cut(n, self.size, self.rank + 1))

    def carry_out(self, algorithm: Algorithm, array: Array) -> None:
        """Carries out an algorithm of yours; `nnmpi.collectives.verify.verify` proves it first.

        Make an algorithm once and use it again: each rank keeps the moves it has derived from it.
        """
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"carry_out takes an Algorithm, not {type(algorithm).__name__}")
        rounds, chunks = algorithm.rounds(self.size), algorithm.chunks(self.size)
        name = f"{rounds} rounds, {chunks} chunks"
        self._in_place("carry_out", name, algorithm, array)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._calls.barrier(self._calls.log("barrier"))

    def isend(self, array: Array, to: int, tag: int = 0) -> Work:
        """Starts to send. The array must not change until the work is complete."""
        to, tag = self._rank(to), checked_tag(tag)
        check_array(array, "isend")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        post = partial(self._p2p.isend, to=to, tag=tag)
        call = Call(self.name, -1, "isend", "", array.dtype, array.size, to, *call_site(1))
        with self._progress.lock:
            posted = [post(part) for part in pieces(data, self._p2p.message_limit)]
            return self._calls.start(iter([posted]), call)

    def irecv(self, array: Array, source: int, tag: int = 0) -> Work:
        """Starts to receive into the array.

        Where the array that is sent has more or fewer bytes, the work raises MessageLengthError.
        """
        source, tag = self._rank(source), checked_tag(tag)
        row = flat(array, "irecv")
        post = partial(self._receiver.irecv, source=source, tag=tag)
        call = Call(self.name, -1, "irecv", "", row.dtype, row.size, source, *call_site(1))
        with self._progress.lock:
            posted = [post(part) for part in pieces(row.view(np.uint8), self._p2p.message_limit)]
            steps = put_back(iter([posted]), row, array)
            return Work(steps, self._receiver, self._progress, call)

    def progress_thread(self, pause: float = 2e-4) -> AbstractContextManager[None]:
        """A context in which a thread progresses the works of this rank, on all its Comms.

        It polls every `pause` seconds. Works need not be complete when the context ends.
        """
        if not self._transport.any_thread:
            raise ValueError(
                "MPI was not started with THREAD_MULTIPLE, so no other thread can progress works: "
                "use --progress poll"
            )
        return progress_thread(self._progress, pause)

    def split(self, color: int | None, key: int | None = None) -> "Comm | None":
        """A Comm of the ranks with one color, in the order of their keys; None for color None."""
        color = None if color is None else operator.index(color)
        if color is not None and color < 0:
            raise ValueError(f"color {color} is below 0: use 0 or more, or None to stay out")
        with self._calls.collective(self._calls.log("split")):
            part = self._p2p.split(color, self.rank if key is None else key)
            self._splits += 1
            name = f"{self.name}/{self._splits}.{color}"
            return None if part is None else Comm(part, name, self._progress)

    def shared(self, n: int, dtype: Any) -> SharedBuffer:
        """Memory for sums of n numbers without copies; collective."""
        n, dtype = checked_size(n, dtype, "shared")
        with self._calls.collective(self._calls.log("shared", "", n, dtype)):
            return SharedBuffer(self._dispatch.reduction(n, dtype), n, self._calls)

    def node_memory(self, n: int, dtype: Any) -> NodeMemory:
        """Memory for n numbers, one for all ranks of a node, zero at first; collective."""
        n, dtype = checked_size(n, dtype, "node_memory")
        call = self._calls.log("node_memory", "", n, dtype)
        with self._calls.collective(call):
            transport = self._dispatch.node_transport(n * dtype.itemsize)
            name = f"{self.name}/node_memory{call.number}"
            memory = NodeMemory(Calls(name, transport, self._progress), n, dtype)
        memory.barrier()
        return memory

    def node(self) -> tuple[int, ...]:
        """The ranks that share memory with this one, in order; collective."""
        with self._calls.collective(self._calls.log("node")):
            return self._dispatch.topology().ranks

    def free_memory(self) -> int:
        """The bytes of shared memory that are free on this node; the first call is collective."""
        with self._calls.collective(self._calls.log("free_memory")):
            return self._dispatch.topology().node.free_memory()

    def agree(self, error: BaseException | None) -> None:
        """Raises on all ranks if one of them passes an error; collective.

        The first rank with an error raises that, and all others OtherRankError with its message.
        """
        mine = agree.encode(error)
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
            except AbortedError:  # a rank that has the text may end the job before the others do
                if self.rank != first:
                    raise
            raise agree.error_of(self.rank, first, error, text.tobytes())

    def free(self) -> None:
        """Frees what MPI holds for this Comm; collective. What uses it afterwards raises.

        Needed where communicators are made by the hundred: MPI has a limit.
        """
        self._calls.barrier(self._calls.log("free"))
        self._dispatch.free()
        self._calls.free()
        self._p2p.free()
        freed: Any = Freed(f"Comm {self.name}")
        self._p2p = self._transport = self._receiver = freed

    def abort(self, message: str) -> None:
        """Ends all ranks of the job, with a message."""
        self._transport.abort(message)

    def _all_reduce(self, array: Array, algorithm: str, starts: bool) -> tuple[Steps, Call]:
        row = flat(array, "all_reduce")
        name = self.fastest(row.nbytes) if algorithm == "auto" else algorithm
        if name not in ALL_REDUCES and not user_code.is_named(name):
            raise unknown(algorithm, "all_reduce", ("auto", *NAMES, "package.module:NAME"))
        lacks_setup = name in NEED_SETUP and self._dispatch.lacks_setup(name, row)
        compare = not starts or lacks_setup
        call = self._calls.log("all_reduce", name, row.size, row.dtype, compare=compare)
        if lacks_setup:
            try:
                with self._calls.collective(call):
                    self._dispatch.set_up(name, row)
            except NoRoomError:
                if algorithm != "auto" or self._choice is None:
                    raise
                self._choice = self._choice.without(name)
                return self._all_reduce(array, algorithm, starts)
        blocks = not starts and self._progress.idle
        steps = self._dispatch.steps(name, row, call.number % TAGS, starts, blocks)
        steps = self._calls.compared(steps, call, before=compare)
        return steps if array.flags.carray else put_back(steps, row, array), call

    def fastest(self, nbytes: int) -> str:
        """The all-reduce that `auto` takes, the same on all ranks; the first call measures it."""
        if self._choice is None and self.size > 1:
            with self._calls.collective(self._calls.log("all_reduce", "auto")):
                transport = self._transport.duplicate(Ledger(self.size))
                trial = Comm(transport, f"{self.name}/trial", self._progress)
            self._choice = autotune.measure_choice(trial)
            trial.free()
        return self._choice.name(nbytes) if self._choice else "ring"

    def _half(
        self, half: Half, array: Array, algorithm: str, parts: Sequence[int] | None, starts: bool
    ) -> tuple[Steps, Call]:
        plan = named(half.algorithms, algorithm, half.operation)
        row = flat(array, half.operation)
        bounds = bounds_of(parts, row.size, self.size, half.operation)
        how = algorithm if parts is None else f"{algorithm}, {parts_text(parts)}"
        call = self._calls.log(half.operation, how, row.size, row.dtype, compare=not starts)
        data = as_integers(row) if half.moves_only else row
        blocks = not starts and self._progress.idle
        steps = self._interpreter.steps(plan, data, call.number % TAGS, blocks, bounds=bounds)
        steps = self._calls.compared(steps, call, before=not starts)
        return put_back(steps, row, array), call

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
        call = self._calls.log(operation, name, row.size, row.dtype, root)
        data = as_integers(row) if moves_only else row
        steps = self._interpreter.steps(plan, data, call.number % TAGS, self._progress.idle)
        self._calls.finish(put_back(steps, row, array), call)

    def _rank(self, rank: int) -> int:
        rank = operator.index(rank)
        if not 0 <= rank < self.size:
            raise ValueError(f"there is no rank {rank} of {self.size}: use 0 to {self.size - 1}")
        return rank
