"""Selects an all-reduce by name: of `collectives`, MPI's, or by shared memory.

`auto` goes by the places of the ranks and the bytes of a sum, never by a measurement, so that the
same job adds in the same order each time:

    all ranks on one node            shared
    some nodes have several ranks    hierarchical
    else, up to SHORT bytes          doubling, with the fewest rounds: latency decides
    else                             halving, with the fewest bytes, in 2 log2 p rounds

With a latency of alpha seconds and beta seconds per byte, `halving` takes less time than `doubling`
from 4 alpha / beta bytes on for four ranks, and from 1.5 alpha / beta on for 64. SHORT lies between
both at 10 Gbit/s and 20 us. By messages within one machine both take equally long at 64 to 256 KiB.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import Algorithm
from nnmpi.comm.allreduce.interpreter import AllReduce, Interpreter
from nnmpi.comm.allreduce.node_memory import NodeTopology, SharedReduction, memory_of_sums
from nnmpi.comm.arguments import Array, accumulator
from nnmpi.comm.call_log import CallSignature, first_tag
from nnmpi.comm.steps import OperationQueue, Steps
from nnmpi.comm.transport.base import ShortSum, Transport

NAMES = (*ALGORITHMS, "mpi", "shared")
SHORT = 1 << 16
NEED_SETUP = ("hierarchical", "mpi", "shared")  # whose first calls wait for all ranks


def for_size(nbytes: int) -> str:
    """Returns the name of the all-reduce for a sum of so many bytes over a network."""
    return "doubling" if nbytes <= SHORT else "halving"


def of_auto(topology: NodeTopology, nbytes: int, has_room: bool) -> str:
    """Returns the all-reduce of `auto`; `has_room`: no sum lacked shared memory so far."""
    if not has_room or topology.is_apart:
        return for_size(nbytes)
    return "shared" if topology.leader_ring is None else "hierarchical"


class PreparedSum(NamedTuple):
    """Everything that all-reduces of arrays of one length and type need, prepared once.

    signature   the description of the call that is written to the call log
    first_tag   the first tag of its messages
    steps       makes the generator of requests that carries out a sum for which the rank waits
    starts      the same for a sum that is only started
    short       compiled code that replaces both while no other operation is pending; or None
    """

    signature: CallSignature
    first_tag: int
    steps: AllReduce
    starts: AllReduce
    short: ShortSum | None


class AllReduceDispatch:
    """Carries out a communicator's all-reduces by name, and owns what some of them need."""

    def __init__(self, transport: Transport, interpreter: Interpreter) -> None:
        self._transport, self._interpreter = transport, interpreter
        self._topology: NodeTopology | None = None
        self._reductions: dict[tuple[int, np.dtype[Any]], SharedReduction] = {}
        # The library's sums have a transport and a queue of their own: MPI matches collectives by
        # the order in which they start, and each starts only when the ranks have agreed how.
        self._library: Transport | None = None
        self._queue = OperationQueue()
        self._custom: dict[str, Algorithm] = {}  # users' algorithms, proved for this many ranks

    def prepare(self, signature: CallSignature) -> PreparedSum:
        """Returns what is needed to sum flat buffers by the algorithm, length and type of
        `signature`; if `lacks_setup` returns True for these, `set_up` must be called first."""
        name, n, dtype = signature.algorithm, signature.elements, np.dtype(signature.dtype)
        tag, short = first_tag(signature, self._transport.marks), None
        if name == "shared":
            short = self._reductions[_reduction_key(n, dtype)].short_sum(n, tag)
        if name == "mpi":
            both = partial(self._by_library, False), partial(self._by_library, True)
            return PreparedSum(signature, tag, *both, short)
        steps = self._steps(name, n, dtype)
        return PreparedSum(signature, tag, steps, steps, short)

    def _steps(self, name: str, n: int, dtype: np.dtype[Any]) -> AllReduce:
        if name == "shared" or (name == "hierarchical" and self.topology().leader_ring is not None):
            return self._reductions[_reduction_key(n, dtype)].all_reduce
        # on a single node, `hierarchical` takes pairs of ranks as nodes
        plan = self._interpreter.plan(self._plan(name), n, dtype)
        return partial(self._interpreter.carry_out, plan)

    def lacks_setup(self, name: str, n: int, dtype: np.dtype[Any]) -> bool:
        """True if `set_up` must be called before the algorithm `name`, one of NEED_SETUP, can sum n
        elements of this type; the same on all ranks."""
        if name == "mpi":
            return self._library is None
        if self._topology is None:
            return True
        reduces = name == "shared" or self._topology.leader_ring is not None
        return reduces and _reduction_key(n, dtype) not in self._reductions

    def set_up(self, name: str, n: int, dtype: np.dtype[Any]) -> None:
        """Allocates the transports or shared memory that an algorithm needs; collective."""
        if name == "mpi":
            self._library = self._transport.duplicate()
        elif name == "shared" or self.topology().leader_ring is not None:
            key = _reduction_key(n, dtype)
            self._reductions[key] = self.reduction(*key)

    def topology(self) -> NodeTopology:
        """The division of ranks into nodes that share memory; the first call is collective."""
        if self._topology is None:
            self._topology = NodeTopology.of(self._transport)
        return self._topology

    def reduction(self, n: int, dtype: Any) -> SharedReduction:
        """Allocates and returns shared memory for sums of n elements; collective."""
        topology = self.topology()
        needed = memory_of_sums(n, np.dtype(dtype), topology.node.size)
        topology.check_memory(needed, "a sum through shared memory", "take another algorithm")
        return SharedReduction(topology, self._interpreter, n, dtype)

    def node_transport(self, nbytes: int) -> Transport:
        """Returns a new transport of this node's ranks, to allocate shared memory; collective.

        Raises NoRoomError on all ranks unless each node has `nbytes` of shared memory free.
        """
        self.topology().check_memory(nbytes, "a memory for each node", "go without shared memory")
        return self.topology().node.duplicate()

    def free(self) -> None:
        """Frees all memory and transports; collective."""
        for reduction in self._reductions.values():
            reduction.free()
        self._reductions.clear()
        if self._topology is not None:
            self._topology.free()
            self._topology = None
        if self._library is not None:
            self._library.free()
            self._library = None

    def _plan(self, name: str) -> Algorithm:
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        if name not in self._custom:
            from nnmpi.collectives.verify import proven  # algorithms of nnmpi are proved in tests

            self._custom[name] = proven(name, [self._transport.size])
        return self._custom[name]

    def _by_library(self, starts: bool, row: Array, tag: int, blocks: bool) -> Steps:
        steps = self._agree_and_sum(row, tag, starts)
        return steps if blocks else self._queue.add(steps)

    def _agree_and_sum(self, row: Array, tag: int, starts: bool) -> Steps:
        """Sums the row in place by MPI_Allreduce if all ranks make a blocking call, otherwise by
        MPI_Iallreduce, as `starts` asks.

        MPI does not match one with the other, so the ranks agree first, also that all make this
        call, which has this `tag`: MPI would sum arrays of other lengths or types. MPI_Allreduce is
        up to three times as fast, but a rank's pending operations make no progress in it.
        """
        assert self._library is not None
        transport, dtype = self._library, _library_dtype(row.dtype)
        sums = row if dtype is row.dtype else row.astype(dtype)
        agreed = np.array([starts, tag], np.int64)
        yield transport.start_all_reduce(agreed)
        starting, tags = agreed.tolist()
        if tags != transport.size * tag:  # no rank sends this message: a watchdog ends the job
            other = (transport.rank + 1) % transport.size
            yield [transport.irecv(np.empty(0, np.uint8), other, tag)]
        if starting:
            yield transport.start_all_reduce(sums)
        else:
            transport.all_reduce(sums)
        if sums is not row:
            row[...] = sums


@cache
def _library_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the type in which the MPI library sums elements of `dtype`.

    8- and 16-bit integers are summed as 32-bit ones and truncated, which wraps around as in NumPy:
    MPI libraries with vector instructions saturate instead.
    """
    short = dtype.itemsize <= 2 and dtype.kind in "iu"
    return np.dtype(np.int32) if short else accumulator(dtype)


def _reduction_key(n: int, dtype: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
    """Returns the key of shared memory for n elements: a power of two, to need few."""
    return power_of_two(n), dtype


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n and at least 2."""
    return 1 << max(n - 1, 1).bit_length()
