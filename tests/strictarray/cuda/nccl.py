"""NCCL for ranks that are threads, each of which has a device of its own.

A collective is carried out on its stream when all ranks have called it; it must be the same call
on all of them. Results are poisoned until then.
"""

import ctypes
import itertools
import threading
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

available = True  # CuPy imports this module without the library too, and it is False then
NCCL_SUM = 0
TYPES = {6: np.float16, 7: np.float32, 8: np.float64}
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = TYPES

SECONDS = 20  # after which a rank that waits for others fails

_uids = itertools.count()
_grouped = threading.local()


class Meeting:
    """What the ranks of one communicator have called, each in its order."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        self.calls: dict[int, dict[int, Any]] = defaultdict(dict)  # by number, by rank
        self.devices: dict[int, int] = {}


_meetings: dict[int, Meeting] = defaultdict(Meeting)


def get_unique_id() -> int:
    return next(_uids)


class Call(NamedTuple):
    """What has to be equal on all ranks."""

    name: str
    count: int
    dtype: int
    root: int = -1


def memory(pointer: int, count: int, dtype: int) -> np.ndarray:
    """What is at an address."""
    kind = np.dtype(TYPES[dtype])
    there = (ctypes.c_byte * (count * kind.itemsize)).from_address(pointer)
    return np.frombuffer(there, kind)


class Collective:
    """A call of one rank, on its stream."""

    def __init__(self, comm: "NcclCommunicator", call: Call, send: int, receive: int) -> None:
        self._meeting, self._number = comm.meeting, comm.next_call()
        self._call, self._size, self._rank = call, comm.size, comm.rank
        many = {"reduceScatter": (self._size, 1), "allGather": (1, self._size)}
        sent, received = many.get(call.name, (1, 1))
        given = memory(send, sent * call.count, call.dtype).copy()
        self._target = memory(receive, received * call.count, call.dtype)
        if call.name != "reduce" or comm.rank == call.root:
            self._target.view(np.uint8)[...] = 0xFF
        with self._meeting.arrived:
            self._meeting.calls[self._number][comm.rank] = call, given
            self._meeting.arrived.notify_all()

    def may_begin(self) -> bool:
        return len(self._meeting.calls[self._number]) == self._size

    def carry_out(self) -> None:
        with self._meeting.arrived:
            if not self._meeting.arrived.wait_for(self.may_begin, SECONDS):
                raise RuntimeError(f"rank {self._rank}: others have not called {self._call}")
        calls = [self._meeting.calls[self._number][r] for r in range(self._size)]
        for call, _ in calls:
            if call != self._call:
                raise RuntimeError(f"ranks have called {call} and {self._call}")
        found = self._result([given for _, given in calls])
        if found is not None:
            self._target[...] = found

    def see(self) -> None:
        """Results are on the device."""

    def _result(self, given: list[np.ndarray]) -> np.ndarray | None:
        name, root = self._call.name, self._call.root
        if name == "broadcast":
            return given[root]
        if name == "allGather":
            return np.concatenate(given)
        if name == "reduceScatter":
            return np.sum(given, axis=0).reshape(self._size, -1)[self._rank]
        return np.sum(given, axis=0) if name == "allReduce" or self._rank == root else None


class NcclCommunicator:
    """A rank's end of a communicator; all ranks make it together."""

    def __init__(self, ndev: int, commId: int, rank: int) -> None:
        from strictarray.cuda import Device

        self.size, self.rank, self.meeting = ndev, rank, _meetings[commId]
        self._calls = itertools.count()
        with self.meeting.arrived:
            self.meeting.devices[rank] = Device().id
            self.meeting.arrived.notify_all()
            if not self.meeting.arrived.wait_for(self._all_are_here, SECONDS):
                raise RuntimeError(f"rank {rank} of {ndev}: others have made no communicator")
        if len({*self.meeting.devices.values()}) < ndev:
            raise RuntimeError("NCCL_ERROR_INVALID_USAGE: two ranks have one device")

    def _all_are_here(self) -> bool:
        return len(self.meeting.devices) == self.size

    def next_call(self) -> int:
        return next(self._calls)

    def allReduce(self, send: int, receive: int, count: int, dtype: int, op: int, stream: int):  # noqa: N802
        self._add(Call("allReduce", count, dtype), send, receive, stream)

    def reduce(
        self, send: int, receive: int, count: int, dtype: int, op: int, root: int, stream: int
    ):
        self._add(Call("reduce", count, dtype, root), send, receive, stream)

    def broadcast(self, send: int, receive: int, count: int, dtype: int, root: int, stream: int):
        self._add(Call("broadcast", count, dtype, root), send, receive, stream)

    def reduceScatter(  # noqa: N802 (CuPy's name)
        self, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ):
        self._add(Call("reduceScatter", count, dtype), send, receive, stream)

    def allGather(self, send: int, receive: int, count: int, dtype: int, stream: int):  # noqa: N802
        self._add(Call("allGather", count, dtype), send, receive, stream)

    def _add(self, call: Call, send: int, receive: int, stream: int) -> None:
        from strictarray.cuda import Stream

        there = Stream.at[stream]
        if not there.is_late:
            raise RuntimeError(f"{call.name} does not wait for what computes its operands")
        there.add(Collective(self, call, send, receive))


def groupStart() -> None:  # noqa: N802 (CuPy's name)
    _grouped.depth = getattr(_grouped, "depth", 0) + 1


def groupEnd() -> None:  # noqa: N802 (CuPy's name)
    if not getattr(_grouped, "depth", 0):
        raise RuntimeError("NCCL_ERROR_INVALID_USAGE: no group was started")
    _grouped.depth -= 1
