"""Values that pass between the grader and the process that runs a student's adapters.py.

Numbers, texts, arrays, lists, ops and steps pass by value. All else stays where it is and passes as
a number: tensors, functions and modules of the student there, the Comm and the stages of a check
here. The grader reads nothing but VALUES, whatever the other process writes.
"""

import io
import pickle
import socket
from typing import Any, ClassVar, Protocol

import numpy as np

from nnmpi.collectives import Algorithm, Step
from nnmpi.schedules.op import Kind, Op

MOST = 1 << 28  # bytes in a message
PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, slice)
SHARED: tuple[Any, ...] = (np.ndarray, Kind, Op, Step, Algorithm)
_MAKERS: tuple[Any, ...] = (np.zeros(1).__reduce__()[0], np.float64(1).__reduce__()[0])
VALUES: dict[tuple[str, str], Any] = {
    (made.__module__, made.__qualname__): made
    for made in (complex, slice, np.dtype, *SHARED, *_MAKERS)
}
"""What a pickle from a student's process may name: types of values, and what makes them."""


class Stays:
    """An object of the grader that the student's code may use.

    methods    the names of those that it may call; one that fills arrays returns them
    facts      the names of attributes that it gets with the object
    """

    methods: ClassVar[tuple[str, ...]] = ()
    facts: ClassVar[tuple[str, ...]] = ()


class Numbering(Protocol):
    """The objects of one end that the other end knows by number."""

    def number(self, value: Any) -> Any:
        """What stands for a value that does not pass, None for one that does."""

    def numbered(self, reference: Any) -> Any:
        """The object that a reference stands for."""


def passes_by_value(value: Any) -> bool:
    """True for values, and for the types that their pickles name."""
    if type(value) in PLAIN or type(value) in SHARED or isinstance(value, np.generic | np.dtype):
        return True
    return callable(value) and any(value is made for made in VALUES.values())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, objects: Numbering) -> None:
        super().__init__(file, 4)
        self.dispatch_table = {Kind: lambda kind: (Kind, (kind.value,))}
        self._objects = objects

    def persistent_id(self, value: Any) -> Any:
        return self._objects.number(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, objects: Numbering) -> None:
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, reference: Any) -> Any:
        return self._objects.numbered(reference)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in VALUES:
            raise pickle.UnpicklingError(f"{module}.{name} is no value")
        return VALUES[module, name]


class Channel:
    """One end of a socket over which two processes take turns to send values."""

    def __init__(self, end: socket.socket, objects: Numbering) -> None:
        self._socket, self._file, self._objects = end, end.makefile("rb"), objects

    def send(self, *message: Any) -> None:
        """Sends a message; raises what pickling raises before anything is sent."""
        file = io.BytesIO()
        _Pickler(file, self._objects).dump(message)
        data = file.getvalue()
        if len(data) > MOST:
            raise ValueError(f"a value of {len(data):,} bytes: {MOST:,} at most can be passed")
        self._socket.sendall(len(data).to_bytes(8, "big") + data)

    def receive(self) -> Any:
        """The next message; raises EOFError when the other process has ended."""
        size = int.from_bytes(self._read(8), "big")
        if size > MOST:
            raise pickle.UnpicklingError(f"a message of {size:,} bytes")
        return _Unpickler(io.BytesIO(self._read(size)), self._objects).load()

    def close(self) -> None:
        """Closes the socket."""
        self._file.close()
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("the other process has ended")
        return data
