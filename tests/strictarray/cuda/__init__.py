"""`strictarray.cuda`: streams, events, pinned memory and devices, as far as nnmpi uses CuPy's.

What NumPy computes is complete at once, and stands for kernels of the null stream. Copies on
another stream are complete as late as they may be, and until then nobody can use them:

    get(stream, out=host, blocking=False)    host is poisoned until the host has seen an event
                                             behind it; it then has what the array holds by then
    set(host, stream)                        the array is poisoned until the null stream waits for
                                             an event behind it; host must not change before the
                                             host has seen one

An event that is asked whether it is done says no at first. Poison is 0xFF in each byte: NaN.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np

from strictarray._counting import note
from strictarray.cuda import cublas

__all__ = [
    "Device",
    "Event",
    "Stream",
    "alloc_pinned_memory",
    "cublas",
    "get_cublas_handle",
    "get_current_stream",
]

POISON = 0xFF


def poison(array: np.ndarray) -> None:
    """Fills a contiguous array with what no computation gives."""
    array.reshape(-1).view(np.uint8)[...] = POISON


class _Kernels(threading.local):
    """Computations of this thread so far."""

    count = 0


kernels = _Kernels()


class Fetch:
    """A copy of an array to the host."""

    def __init__(self, source: np.ndarray, host: np.ndarray, is_late: bool) -> None:
        self.source, self.host, self._is_late = source, host, is_late
        self._found: np.ndarray | None = None
        poison(host)

    def may_begin(self) -> bool:
        return True

    def carry_out(self) -> None:
        """By the device: the host does not know yet."""
        self._found = self.source.copy()
        if not self._is_late:  # the stream has not waited for what computes the source
            poison(self._found)

    def see(self) -> None:
        """By the host."""
        self.host[...] = self._found


class Put:
    """A copy of an array of the host to the device."""

    def __init__(self, host: np.ndarray, target: np.ndarray) -> None:
        self.host, self._target, self._sent = host, target, host.copy()
        self.is_over = False  # what comes behind it on the stream may write to the host's array
        poison(target)

    def may_begin(self) -> bool:
        return True

    def carry_out(self) -> None:
        self._check()
        self._target[...] = self._sent

    def see(self) -> None:
        if not self.is_over:
            self._check()

    def _check(self) -> None:
        if self.host.tobytes() != self._sent.tobytes():
            raise RuntimeError("the host changed an array before its copy to the device was done")


class Stream:
    """Copies in their order; `null` is the stream of computations."""

    null: "Stream"
    at: ClassVar["weakref.WeakValueDictionary[int, Stream]"] = weakref.WeakValueDictionary()

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._is_null, self.ptr = null, id(self)
        self.at[self.ptr] = self
        self._copies: list[Any] = []
        self._carried_out = self._seen = 0
        self._waited_for = -1  # kernels
        self._lock = threading.RLock()

    def add(self, copy: Any) -> None:
        """A copy, or a collective of NCCL."""
        with self._lock:
            self._copies.append(copy)

    def may_come_to(self, count: int) -> bool:
        """Whether the device can carry out so many without waiting for other ranks."""
        with self._lock:
            return all(copy.may_begin() for copy in self._copies[self._carried_out : count])

    @property
    def is_late(self) -> bool:
        """Whether it waits for all that this thread has computed."""
        return self._waited_for == kernels.count

    def put(self, host: np.ndarray, target: np.ndarray) -> None:
        """Adds a copy to the device."""
        self.add(Put(host, target))

    def fetch(self, source: np.ndarray, host: np.ndarray) -> None:
        """Adds a copy to the host; copies from there that are before it on the stream come
        first."""
        with self._lock:
            for copy in self._copies[self._seen :]:
                if isinstance(copy, Put) and np.may_share_memory(copy.host, host):
                    self.carry_out(len(self._copies))
                    copy.is_over = True
            self.add(Fetch(source, host, self.is_late))

    def carry_out(self, count: int) -> None:
        """By the device."""
        with self._lock:
            for copy in self._copies[self._carried_out : count]:
                copy.carry_out()
            self._carried_out = max(self._carried_out, count)

    def see(self, count: int) -> None:
        """By the host, too."""
        with self._lock:
            self.carry_out(count)
            for copy in self._copies[self._seen : count]:
                copy.see()
            self._copies[self._seen : count] = [None] * max(count - self._seen, 0)
            self._seen = max(self._seen, count)

    def wait_event(self, event: "Event") -> None:
        """What comes behind it on this stream waits for the event."""
        if self._is_null:
            event.stream.carry_out(event.count)
        else:
            self._waited_for = max(self._waited_for, event.kernels)

    def synchronize(self) -> None:
        note("synchronize")
        self.see(len(self._copies))


Stream.null = Stream(null=True)


class Event:
    """A place in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._asked = False

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or Stream.null
        self.count, self.kernels = len(self.stream._copies), kernels.count

    @property
    def done(self) -> bool:
        """Whether the device has come there; not when it is asked for the first time."""
        if not self._asked:
            self._asked = True
            return False
        if not self.stream.may_come_to(self.count):
            return False
        self.stream.see(self.count)
        return True

    def synchronize(self) -> None:
        """A wait, unless the device has something to compute meanwhile."""
        if self.kernels == kernels.count:
            note("synchronize")
        self.stream.see(self.count)


def get_current_stream() -> Stream:
    return Stream.null


def get_cublas_handle() -> int:
    return cublas.HANDLE


pinned: list[int] = []
"""The bytes of each piece of pinned memory that was taken."""


def alloc_pinned_memory(nbytes: int) -> bytearray:
    pinned.append(nbytes)
    return bytearray([POISON]) * nbytes


class _Current(threading.local):
    device = 0


_current = _Current()
_machine = {"devices": 1}


class Device:
    """One of several devices, which all are this processor."""

    def __init__(self, device: int | None = None) -> None:
        self.id = _current.device if device is None else device
        if not 0 <= self.id < _machine["devices"]:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def use(self) -> None:
        _current.device = self.id

    def __enter__(self) -> Self:
        self._before = _current.device
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        _current.device = self._before


class runtime:  # noqa: N801 (CuPy's name)
    CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF = cublas.TYPES

    @staticmethod
    def getDevice() -> int:  # noqa: N802 (CuPy's name)
        return _current.device

    @staticmethod
    def getDeviceCount() -> int:  # noqa: N802 (CuPy's name)
        return _machine["devices"]

    @staticmethod
    def deviceGetPCIBusId(device: int) -> str:  # noqa: N802 (CuPy's name)
        return f"0000:{device:02X}:00.0"


@contextmanager
def devices(count: int) -> Iterator[None]:
    """So many devices in every thread."""
    before = dict(_machine)
    _machine["devices"] = count
    try:
        yield
    finally:
        _machine.update(before)
