"""Comm: a communicator with messages and collectives. Rules for changes are in `__init__.py`."""

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
from numpy import ndarray

from nnmpi.collectives.step import Algorithm, chunk_start
from nnmpi.comm.allreduce.dispatch import NAMES, NEED_SETUP, AllReduceDispatch, PreparedSum, of_auto
from nnmpi.comm.allreduce.interpreter import MOST_PLANS, Interpreter
from nnmpi.comm.allreduce.node_memory import NodeTopology
from nnmpi.comm.arguments import (
    Array,
    CallTag,
    Parts,
    bounds_of,
    check_dtype,
    checked_rank,
    checked_size,
    checked_tag,
    flat,
    host_array,
    put_back,
    unknown_name,
)
from nnmpi.comm.call_log import CallLog, CallRecord, CallSignature
from nnmpi.comm.calls import CallRunner, FreedObject, PreparedSums, record_of
from nnmpi.comm.progress import Progress, Work
from nnmpi.comm.roll_call import roll_call
from nnmpi.comm.shared_memory import NodeMemory, SharedBuffer
from nnmpi.comm.steps import Copies, Steps
from nnmpi.comm.transport.base import PENDING, Ledger, NoRoomError, Request, Transport, pieces
from nnmpi.options import user_code


class Comm:
    """A communicator: `size` ranks, of which this process is `rank`.

    Collectives work in place on arrays that have the same length and type on all ranks, and all
    ranks call them in the same order. If they do not, they wait for each other, and the job ends
    with a line that names both calls; NNMPI_DEBUG=collectives raises MismatchError before a call
    begins. The same algorithm on the same ranks gives the same bits. A rank uses its Comms from one
    thread.
    """

    def __init__(
        self,
        transport: Transport,
        name: str = "world",
        progress: Progress | None = None,
        narrow_sums: bool = False,
    ) -> None:
        self.rank, self.size, self.name = transport.rank, transport.size, name
        self.any_thread = transport.any_thread  # any thread may call MPI; see `progress_thread`
        self.fault_tolerant = transport.fault_tolerant  # raises RankLost; see `shrink`
        self.members = tuple(transport.members)  # each rank's number in the job as it was started
        self.narrow_sums = narrow_sums
        self.lost = tuple(transport.family.gone)  # job ranks that were lost before
        self.system = transport.family.system  # time and threads
        self._progress = progress or Progress(CallLog())
        self._progress.family = transport.family
        # two transports: a user's tag must never match a message of a collective
        self._p2p, self._transport = transport, transport.duplicate()
        self._receiver = transport.receiver()
        self._interpreter = Interpreter(self._transport, narrow_sums)
        self._dispatch = AllReduceDispatch(self._transport, self._interpreter)
        self._nodes: NodeTopology | None = None  # not known before "auto" asks
        self._has_room = True  # for sums in shared memory, as far as known
        self._prepared: PreparedSums = {}
        self._splits, self._groups = 0, Counter[tuple[int, ...]]()
        self._calls = CallRunner(name, self._transport, self._progress)
        self._steps = partial(self._calls.steps_of, self._interpreter)
        self.attributes: dict[str, Any] = {}  # set by layers above, like MPI_Comm_set_attr
        self.comms_of_rank = self._progress.comms  # all Comms of this rank
        self.comms_of_rank.add(self)

    @property
    def ledger(self) -> Ledger:
        """The messages and bytes that this rank has sent to and received from each peer."""
        return self._transport.ledger

    def all_reduce(self, array: Array, algorithm: str = "auto") -> None:
        """Replaces the array by its sum over the ranks, by an algorithm's name
        (`collectives.ALGORITHMS`), "mpi", "shared" or "auto": by ranks' places and the size."""
        if not self._calls.try_short_sum(array, algorithm, self._prepared):
            steps = self._all_reduce(array, algorithm, starts=False)
            self._progress.finish(*steps, self._transport)

    def start(self, array: Array, algorithm: str = "auto", copies: Copies = None) -> Work:
        """Starts an all-reduce by `algorithm`, a name as for `all_reduce`, and returns its Work; do
        not touch the array until that is complete.

        The first call of a Comm with "auto" or "mpi" waits for all ranks, and so does the first
        call with "shared" for arrays of a new length. `copies`, for an array that holds the data of
        a GPU, delays the start until the data have arrived, and copies the result back.
        """
        return self._calls.start(*self._all_reduce(array, algorithm, starts=True), copies)

    def reduce_scatter(self, array: Array, algorithm: str = "ring", parts: Parts = None) -> Array:
        """Sums this rank's part of the array over the ranks, and returns it as a view of the array.

        `parts` are the lengths of all ranks' parts, in rank order; by default parts are those of
        `chunk`. The rest of the array is overwritten with intermediate results.
        """
        array = host_array(array, "reduce_scatter")
        if not array.flags.c_contiguous:
            raise ValueError("reduce_scatter takes an array in C order: use ascontiguousarray")
        self._calls.finish(*self._steps("reduce_scatter", algorithm, array, parts, starts=False))
        bounds = bounds_of(parts, array.size, self.size, "reduce_scatter")
        return np.asarray(array).reshape(-1)[bounds[self.rank] : bounds[self.rank + 1]]

    def start_reduce_scatter(
        self, array: Array, algorithm: str = "ring", parts: Parts = None, copies: Copies = None
    ) -> Work:
        """Starts a reduce-scatter and returns its Work: in the end this rank's part is the sum. Do
        not touch the array until then. `parts` as in `reduce_scatter`, `copies` as in `start`."""
        steps = self._steps("reduce_scatter", algorithm, array, parts, starts=True)
        return self._calls.start(*steps, copies)

    def all_gather(self, array: Array, algorithm: str = "ring", parts: Parts = None) -> None:
        """Fills the array on every rank with the parts of all ranks; each rank provides its own.

        `parts` are the lengths of all ranks' parts, in rank order; by default they are about equal.
        """
        self._calls.finish(*self._steps("all_gather", algorithm, array, parts, starts=False))

    def start_all_gather(
        self, array: Array, algorithm: str = "ring", parts: Parts = None, copies: Copies = None
    ) -> Work:
        """Starts an all-gather and returns its Work. Do not touch the array until it is complete.
        `parts` are as in `all_gather`, `copies` as in `start`."""
        steps = self._steps("all_gather", algorithm, array, parts, starts=True)
        return self._calls.start(*steps, copies)

    def broadcast(self, array: Array, root: int = 0, algorithm: str = "tree") -> None:
        """Replaces the array on every rank by the array of `root`."""
        root = checked_rank(root, self.size)
        self._calls.finish(*self._steps("broadcast", algorithm, array, root=root))

    def start_broadcast(
        self, array: Array, root: int = 0, algorithm: str = "tree", copies: Copies = None
    ) -> Work:
        """Starts a broadcast and returns its Work. Do not touch the array until it is complete.
        `copies` as in `start`."""
        root = checked_rank(root, self.size)
        steps = self._steps("broadcast", algorithm, array, starts=True, root=root)
        return self._calls.start(*steps, copies)

    def reduce(self, array: Array, root: int = 0, algorithm: str = "tree") -> None:
        """Replaces the array on `root` by its sum over the ranks; other arrays are unchanged."""
        root = checked_rank(root, self.size)
        buffer = array if self.rank == root else flat(array, "reduce").copy()
        self._calls.finish(*self._steps("reduce", algorithm, buffer, root=root))

    def chunk(self, n: int) -> slice:
        """Returns this rank's slice of n elements, divided as by `reduce_scatter`."""
        return slice(chunk_start(n, self.size, self.rank), chunk_start(n, self.size, self.rank + 1))

    def carry_out(self, algorithm: Algorithm, array: Array) -> None:
        """Runs a user-defined algorithm on the array; prove it first by `verify.verify`. Create it
        once and reuse it: each rank caches the messages it has derived from it."""
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"carry_out takes an Algorithm, not {type(algorithm).__name__}")
        name = f"{algorithm.rounds(self.size)} rounds, {algorithm.chunks(self.size)} chunks"
        self._calls.finish(*self._steps("carry_out", name, array, plan=algorithm))

    def message_tag(self, operation: str, row: Array | None = None, root: int = -1) -> CallTag:
        """Returns the tag of the messages of which the caller makes a collective called
        `operation`; all ranks call it. One with another name, root, or length or type of `row` gets
        none of them."""
        n, dtype = (0, None) if row is None else (row.size, row.dtype)
        return CallTag(self._calls.tag(self._calls.log(operation, "", n, dtype, root)))

    def describe_next(self, purpose: str) -> None:
        """Makes this text part of the next collective, whose messages reach only such ranks."""
        self._calls.purpose = purpose

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._calls.barrier(self._calls.log("barrier"))

    def meet(self, call: str) -> None:
        """A barrier at the start of the user's method `call`; after a second, prints which ranks
        are missing. Raises ValueError on all ranks if they name different methods."""
        if self.size > 1:
            roll_call(self._calls, call, self._p2p)

    def isend(self, array: Array, to: int, tag: int = 0, copies: Copies = None) -> Work:
        """Starts a send and returns its Work; do not change the array until that is complete.
        `copies`, for data of a GPU, delays the start until they have arrived."""
        to, tag = checked_rank(to, self.size), checked_tag(tag)
        array = host_array(array, "isend")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        signature = CallSignature(self.name, "isend", "", array.dtype, array.size, to)
        send = self._p2p.issend if isinstance(tag, CallTag) else self._p2p.isend
        steps = self._posted(partial(send, to=to, tag=tag), data)
        return Work(steps, self._transport, self._progress, record_of(signature, -1, 1), copies)

    def irecv(self, array: Array, source: int, tag: int = 0, copies: Copies = None) -> Work:
        """Starts a receive into the array and returns its Work, which raises MessageLengthError for
        a message of another length. `copies` copies what has arrived to a GPU."""
        source, tag = checked_rank(source, self.size), checked_tag(tag)
        row = flat(array, "irecv")
        signature = CallSignature(self.name, "irecv", "", row.dtype, row.size, source)
        steps = self._posted(partial(self._receiver.irecv, source=source, tag=tag), row)
        if row is not array:
            steps = put_back(steps, row, array)
        return Work(steps, self._receiver, self._progress, record_of(signature, -1, 1), copies)

    def _posted(self, post: Callable[[Array], Request], row: Array) -> Steps:
        """Posts a send or receive of a flat array by `post`, in several messages if it is long, at
        the operation's first step, with the progress engine locked."""
        data, most = row.view(np.uint8), self._p2p.message_limit
        yield [post(data)] if data.size <= most else [post(part) for part in pieces(data, most)]

    def poll(self) -> None:
        """Moves all pending operations of this rank forward, without waiting."""
        self._progress.poll()

    def progress_thread(self, pause: float = 2e-4) -> AbstractContextManager[None]:
        """A context in which a thread moves this rank's pending operations forward, on all its
        Comms, with `pause` seconds between two polls. Operations may be pending at its end."""
        if not self._transport.any_thread:
            why = "MPI runs without THREAD_MULTIPLE, so no other thread can advance operations"
            raise ValueError(f"{why}: use --progress poll")
        return self._progress.thread(pause)

    def works_in(self, works: list[Work]) -> AbstractContextManager[None]:
        """A context that keeps this rank's operations in progress, on all its Comms, in `works`,
        whose `append` and `remove` are called when one starts and ends."""
        return self._progress.works_in(works)

    def split(
        self, color: int | None, key: int | None = None, narrow_sums: bool = False
    ) -> "Comm | None":
        """A Comm of the ranks with the same color, ordered by key; None if color is None.

        With `narrow_sums`, sums of 16-bit floats travel in 16 bits and are rounded after each
        addition, or once per node where the node sums in shared memory.
        """
        if color is not None and operator.index(color) < 0:
            raise ValueError(f"color {color} is below 0: use 0 or more, or None to stay out")
        with self._calls.collective(self._calls.log("split")):
            part = self._p2p.split(color, self.rank if key is None else key)
            self._splits += 1
            name = f"{self.name}/{self._splits}.{color}"
            return None if part is None else Comm(part, name, self._progress, narrow_sums)

    def subset(self, ranks: Sequence[int], narrow_sums: bool = False) -> "Comm | None":
        """A Comm of the given ranks, which all pass the same list; None for an empty list, which
        all other ranks of this Comm pass. `narrow_sums` is that of `split`."""
        return self.split(ranks[0] if ranks else None, narrow_sums=narrow_sums)

    def group(self, ranks: Sequence[int]) -> "Comm":
        """Returns a Comm of the given ranks; only these call it, all with the same list. It is
        slower than `subset`, which all ranks call. Fault-tolerant jobs cannot use it."""
        if self.fault_tolerant:
            raise ValueError("ranks of a fault-tolerant job form no groups: use split or subset")
        from nnmpi.comm.group_call import group_name, group_transport  # few programs make groups

        members = [checked_rank(rank, self.size) for rank in ranks]
        transport = group_transport(self._calls, members, self._p2p)
        self._groups[*members] += 1  # which members count alike
        name = f"{self.name}/{group_name(members)}.{self._groups[*members]}"
        return Comm(transport, name, self._progress)

    def shared(self, n: int, dtype: Any) -> SharedBuffer:
        """Allocates shared memory in which n elements are summed without copies; collective."""
        n, dtype = checked_size(n, dtype, "shared")
        with self._calls.collective(self._calls.log("shared", "", n, dtype)):
            return SharedBuffer(self._dispatch.reduction(n, dtype), n, self._calls)

    def node_memory(self, n: int, dtype: Any) -> NodeMemory:
        """Allocates an array of n zeros that the ranks of each node share; collective."""
        n, dtype = checked_size(n, dtype, "node_memory")
        with self._calls.collective(call := self._calls.log("node_memory", "", n, dtype)):
            transport = self._dispatch.node_transport(n * dtype.itemsize)
            name = f"{self.name}/node_memory{call[1]}"
            memory = NodeMemory(CallRunner(name, transport, self._progress), n, dtype)
        memory.barrier()  # the first rank of the node has zeroed it by then
        return memory

    def node(self) -> tuple[int, ...]:
        """The ranks of this Comm that share memory with this rank, in order; collective."""
        with self._calls.collective(self._calls.log("node")):
            return self._dispatch.topology().ranks

    def free_memory(self) -> int:
        """The free bytes of shared memory on this node; the first call is collective."""
        with self._calls.collective(self._calls.log("free_memory")):
            return self._dispatch.topology().node.free_memory()

    def agree(self, error: BaseException | None) -> None:
        """Raises on all ranks if any rank passes an error, so that the others need not wait;
        collective. The first such rank raises its error, the others OtherRankError with its
        text."""
        self._calls.agree(error, self._interpreter)

    def free_sums(self) -> None:
        """Frees the shared memory of all-reduces; the next ones allocate it again. Collective."""
        self._prepared.clear()
        self._dispatch.free()

    def free(self) -> None:
        """Frees the MPI communicators of this Comm, of which MPI has a limited number; collective.
        Later uses of the Comm raise RuntimeError."""
        if not self.is_abandoned:
            self._calls.barrier(self._calls.log("free"))
        self.free_sums()
        self._calls.free()
        self._p2p.free()
        self.comms_of_rank.discard(self)
        self._p2p = self._transport = self._receiver = cast(Any, FreedObject(f"Comm {self.name}"))

    def confirm(self) -> None:
        """Checks for lost ranks: returns on all ranks of the job, or raises RankLost on those left.

        After RankLost call `shrink`. Other operations may complete on some ranks and raise on
        others.
        """
        with self._calls.collective(self._calls.log("confirm")):
            self._p2p.family.confirm()

    @property
    def is_abandoned(self) -> bool:
        """True if only `shrink` may follow: a rank was lost, perhaps before this Comm was made."""
        return self._p2p.family.abandoned

    def abandon(self) -> None:
        """Revokes all Comms of this rank: their operations end on all ranks, without waiting.

        Later operations raise RankLost. Shared memory stays readable, and is freed by each alone.
        """
        self._progress.abandon()

    def shrink(self) -> "Comm":
        """Returns a Comm of the ranks that are left after a RankLost, in their old order.

        All ranks that are left call `shrink`, each on any of its Comms. It abandons the old Comms.
        If another rank is lost meanwhile, it raises RankLost: call it again.
        """
        with self._progress.log.during(self._calls.log("shrink")):
            return Comm(self._progress.shrink(), "world", self._progress)

    def abort(self, message: str, status: int = 1) -> NoReturn:
        """Prints a message and ends all ranks of the job; MPI processes get the exit status."""
        self._transport.abort(message, status)

    def _all_reduce(self, array: Array, algorithm: str, starts: bool) -> tuple[Steps, CallRecord]:
        row, calls = array, self._calls
        if type(row) is not ndarray or not row.flags.carray or row.ndim != 1:
            row = flat(array, "all_reduce")
        key = algorithm, row.size, row.dtype
        signature, first_tag, waits, later, _ = self._prepared.get(key) or self._prepare(*key)
        call = calls.record(calls.described(signature) if calls.purpose else signature)
        blocks = not starts and not self._progress.works
        tag = first_tag + call[1] % PENDING if call[0] is signature else calls.tag(call)
        steps = (later if starts else waits)(row, tag, blocks)
        if calls.comparison is not None and not starts:  # `CallRunner.start` has it compared too
            steps = calls.compared(steps, call, blocks)
        return steps if row is array else put_back(steps, row, array), call

    def _prepare(self, algorithm: str, n: int, dtype: Any) -> PreparedSum:
        """Returns what is needed to sum arrays of one length and type by an algorithm, from a
        cache. Memory or transports are set up first; the log shows this as another call."""
        check_dtype(dtype, "all_reduce")
        name = self.fastest(n * dtype.itemsize) if algorithm == "auto" else algorithm
        if name not in NAMES and not user_code.is_named(name):
            raise unknown_name(algorithm, "all_reduce", ("auto", *NAMES, "package.module:NAME"))
        signature = CallSignature(self.name, "all_reduce", name, dtype, n, -1)
        if name in NEED_SETUP and self._dispatch.lacks_setup(name, n, dtype):
            try:
                with self._calls.collective(self._calls.record(signature)):
                    self._dispatch.set_up(name, n, dtype)
            except NoRoomError:  # raised on all ranks alike, so all of them fall back
                if algorithm != "auto":
                    raise
                self._has_room = False
                self._prepared.clear()
                return self._prepare(algorithm, n, dtype)
        if len(self._prepared) == MOST_PLANS:
            self._prepared.clear()
        self._prepared[algorithm, n, dtype] = prepared = self._dispatch.prepare(signature)
        return prepared

    def fastest(self, nbytes: int) -> str:
        """The algorithm that `auto` uses for an all-reduce of `nbytes`, on all ranks. The first
        call finds out which ranks share memory, and is collective."""
        if self.size == 1:
            return "ring"
        if self._nodes is None:
            with self._calls.collective(self._calls.log("all_reduce", "auto")):
                self._nodes = self._dispatch.topology()
        return of_auto(self._nodes, nbytes, self._has_room)
