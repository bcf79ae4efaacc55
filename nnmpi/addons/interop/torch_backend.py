"""The backend "nnmpi" of torch.distributed: collectives of PyTorch's CPU tensors over MPI.

>>> import nnmpi.torch
>>> torch.distributed.init_process_group("nnmpi")

Under mpirun, PyTorch's own DistributedDataParallel, FSDP, DTensor and torch.distributed.checkpoint
then run on the Comms of nnmpi: sums by any of its algorithms (`use`), in the memory of the tensors,
with messages about hangs, differing calls and lost ranks, and a count of messages and bytes
(`comm`). Importing this module starts MPI, and sets the variables that init_process_group reads.

    Group     torch's process group, over `nnmpi.distributed.rows`
    Started   torch's Work of a collective; a Waiter completes its future
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from nnmpi.addons.interop.tensor_rows import (
    Tensors,
    all_bytes,
    bytes_of,
    check_types,
    copy_all,
    row_of,
)
from nnmpi.addons.torchlike.distributed import environment
from nnmpi.addons.torchlike.distributed.rows import Handle, ReduceOp, Rows, Then
from nnmpi.addons.torchlike.distributed.waiter import Waiter
from nnmpi.arrays.backend import Array
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.comm import Comm, world
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.options.user_code import is_named

NAME = "nnmpi"
OPS = [(getattr(dist.ReduceOp, op.name), op) for op in ReduceOp if hasattr(dist.ReduceOp, op.name)]
"""Pairs of a reduction of PyTorch and the same one of nnmpi."""

_chosen = ["auto"]
_groups: list["Group"] = []


def use(algorithm: str, group: Any = None) -> None:
    """Chooses the all-reduce algorithm of nnmpi for later sums, in one group or in all groups.

    It is one of `nnmpi.collectives.ALGORITHMS`, "auto", "shared", "mpi", or the user's
    "package.module:NAME". Reduce-scatters and all-gathers use the algorithm of the same name if
    there is one, else the ring. All ranks must choose the same.
    """
    if algorithm not in (*NAMES, "auto") and not is_named(algorithm):
        raise ValueError(
            f"nnmpi.torch.use: there is no all-reduce {algorithm!r}: choose one of "
            f"{', '.join(('auto', *NAMES, 'package.module:NAME'))}; those with halves are "
            f"{', '.join(REDUCE_SCATTERS)}"
        )
    if group is None:
        _chosen[0] = algorithm
    for each in _groups if group is None else [_group_of(group)]:
        each.rows.algorithm = algorithm


def comm(group: Any = None) -> Comm:
    """Returns the nnmpi Comm that a group of torch.distributed uses, by default that of all ranks:
    its `ledger` counts the messages and bytes that this rank has sent and received."""
    return _group_of(group).rows.comm


def _group_of(group: Any) -> "Group":
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, Group):
        raise ValueError(
            f"{chosen!r:.60} is no group of the backend nnmpi: call "
            'torch.distributed.init_process_group("nnmpi") first'
        )
    return chosen


def _coalesced(name: str) -> Callable[..., "Started"]:
    """Returns a method of Group that calls `name` for each pair of an output and an input."""

    def method(self: "Group", outputs: Tensors, inputs: Tensors, opts: Any = None) -> "Started":
        pairs = zip(outputs, inputs, strict=True)
        return Started.of([getattr(self, name)(*pair, opts) for pair in pairs], outputs)

    return method


class Group(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of PyTorch whose collectives are carried out by an nnmpi Comm, by methods
    with the names and arguments with which PyTorch calls them; each returns a Work."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm.rank, comm.size)
        self.rows, self._name = Rows(comm, _chosen[0], may_wait=comm is world()), ""
        _groups.append(self)

    def shutdown(self) -> None:
        """Frees the Comm, unless it is that of all ranks; PyTorch calls it when the group ends."""
        _groups.remove(self)
        if self.rows.comm is not world():
            self.rows.comm.free()

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's names, here and below
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    group_name = property(getGroupName)
    group_desc = property(lambda self: f"{NAME}, {self.rows.comm.name}")

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        """Called by PyTorch; does nothing, since `group_desc` is the name of the Comm."""

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> "Started":
        row, back = row_of(tensors[0])
        return self._started("all_reduce", tensors, [back], row, self.rows.all_reduce, _op(opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> "Started":
        return Started.of([self.allreduce([t], opts) for t in tensors], tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> "Started":
        (row, back), root = row_of(tensors[0]), opts.rootRank
        return self._started("reduce", tensors, [back], row, self.rows.reduce, root, _op(opts))

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> "Started":
        check_types(output, input)
        part, back = row_of(output)
        row = row_of(input)[0].copy()  # sums overwrite it
        call = self.rows.reduce_scatter
        return self._started("reduce_scatter", [output], [back], part, call, row, _op(opts))

    reduce_scatter_single_coalesced = _coalesced("reduce_scatter_single")

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> "Started":
        return self.reduce_scatter_single(outputs[0], torch.stack([*inputs[0]]), opts)

    # ---- moves, of bytes

    def broadcast(self, tensors: Tensors, opts: Any) -> "Started":
        row, back = bytes_of(tensors[0])
        return self._started("broadcast", tensors, [back], row, self.rows.broadcast, opts.rootRank)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> "Started":
        check_types(output, input)
        (gathered, back), (row, _) = bytes_of(output), bytes_of(input)
        return self._started("all_gather", [output], [back], gathered, self.rows.all_gather, row)

    all_gather_single_coalesced = _coalesced("all_gather_single")

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> "Started":
        t = inputs[0]
        gathered = torch.empty((self.size(), *t.shape), dtype=t.dtype)
        work = self.all_gather_single(gathered, t, opts)
        handle = work.handle.followed_by(lambda: copy_all(outputs[0], gathered))
        return Started(handle, outputs[0], self.rows.comm, "all_gather")

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> "Started":
        rows, backs = all_bytes(outputs[0] if outputs else ())
        row = bytes_of(inputs[0])[0]

        def call(row: Array) -> Handle:
            return self.rows.gather(rows, row, opts.rootRank)

        return self._started("gather", inputs, backs, row, call)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> "Started":
        row, back = bytes_of(outputs[0])
        rows, root = all_bytes(inputs[0] if inputs else ())[0], opts.rootRank
        return self._started("scatter", outputs, [back], row, self.rows.scatter, rows, root)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: list[int], input_sizes: list[int], opts: Any
    ) -> "Started":
        outputs, inputs = (
            list(t.split(sizes)) if sizes else list(t.chunk(self.size()))
            for t, sizes in ((output, output_sizes), (input, input_sizes))
        )
        return self.alltoall(outputs, inputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> "Started":
        (received, backs), (sent, _) = all_bytes(outputs), all_bytes(inputs)

        def call(longest: Array) -> Handle:
            return self.rows.all_to_all(received, sent)

        return self._started("all_to_all", outputs, backs, max(sent, key=len), call)

    def send(self, tensors: Tensors, to: int, tag: int) -> "Started":
        return self._started("send", tensors, [], bytes_of(tensors[0])[0], self.rows.send, to, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> "Started":
        row, back = bytes_of(tensors[0])
        return self._started("recv", tensors, [back], row, self.rows.recv, source, tag)

    def barrier(self, opts: Any = None) -> "Started":
        return Started(self.rows.barrier(), [], self.rows.comm, "barrier")

    def _started(
        self,
        name: str,
        result: Tensors,
        backs: Sequence[Then],
        row: Array,
        call: Callable[..., Handle],
        *arguments: Any,
    ) -> "Started":
        """Starts a collective by `call(row, *arguments)`, where `row` is the memory of a tensor,
        and returns its Work, whose result are the tensors `result`. When its messages have arrived,
        each function in `backs` is called, to copy data to tensors."""
        label = f"{NAME}.{name} of {row.nbytes:,} bytes"
        with _in_profile(label):
            handle = call(row, *arguments)
        for back in backs:
            handle.followed_by(back)
        return Started(handle, result, self.rows.comm, label)


class Started(dist._Work):  # type: ignore[misc]
    """A Work of PyTorch: a collective in progress, with the tensors that will have its result."""

    def __init__(self, handle: Handle, result: Tensors, comm: Comm, label: str) -> None:
        super().__init__()
        self.handle, self._result, self._comm, self._label = handle, list(result), comm, label
        self._future: Any = None

    @classmethod
    def of(cls, works: Sequence["Started"], result: Tensors) -> "Started":
        """Joins several collectives into one Work, which is complete when all of them are."""
        handle = Handle([work.handle for work in works])
        return cls(handle, result, works[0]._comm, works[0]._label)

    def wait(self, timeout: Any = None) -> bool:
        """Returns when the result is complete; `timeout` is ignored: NNMPI_TIMEOUT limits waits."""
        with _in_profile(f"wait: {self._label}"):
            return self.handle.wait()

    def is_completed(self) -> bool:
        return self.handle.is_completed()

    is_success = is_completed

    def result(self) -> list[Any]:
        return self._result

    def get_future(self) -> Any:
        """Returns a future of the result, for code of PyTorch that waits for futures. A thread
        completes it; if MPI allows only one thread, this method waits."""
        if self._future is None:
            self._future = Future()
            if not self._comm.any_thread:
                self.wait()
            _waiter.add(self.handle, self._end)
        return self._future

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._future.set_result(self._result)
        else:
            # ends this rank with its message: PyTorch's code would take the exception in the future
            # for a tensor, and crash
            sys.excepthook(type(error), error, error.__traceback__)
            self._future.set_exception(error)


_waiter = Waiter()


def _op(opts: Any) -> ReduceOp:
    """Returns the reduction, such as SUM, that PyTorch's options name; SUM without options."""
    if opts is None:
        return ReduceOp.SUM
    op = next((ours for theirs, ours in OPS if opts.reduceOp == theirs), None)
    if op is None:
        raise ValueError(
            f"the backend nnmpi has no reduction {opts.reduceOp}: use one of "
            f"{', '.join(op.name for op in ReduceOp)}"
        )
    return op


def _in_profile(label: str) -> Any:
    """Returns a context that a trace of torch.profiler shows under this label."""
    is_on = torch.autograd._profiler_enabled()
    return torch.profiler.record_function(label) if is_on else nullcontext()


# ---- the backend


def _make(opts: Any, _: Any) -> Group:
    """Makes a process group, as PyTorch's registration of the backend asks for. Only the members of
    the group call it; for the default group, PyTorch lists no members."""
    members, job = list(opts.global_ranks_in_group), world()
    return Group(job.group(members) if members else job)


environment.set_address()
dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu"])
