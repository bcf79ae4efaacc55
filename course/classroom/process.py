"""The process that runs a student's adapters.py: it answers a grader's questions with values.

`python -m classroom.process CONTROL FD FD ...` has a thread for each rank, which serves the socket
of this number. The grader asks over CONTROL on which line a rank computes. The process has no
other tie to the grader, and ends when the grader closes CONTROL.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from classroom.adapters import compiled, load, told
from classroom.channel import Channel, passes_by_value
from classroom.comm import HELD, Array, Held, ring_all_reduce

NOWHERE = 0  # the line if no code of adapters.py runs


class GraderError(RuntimeError):
    """An error in a call that adapters.py has made of an object of the grader."""


class Rank:
    """The answers of a rank: an object that stays here has a number, from `load` to `load`."""

    def __init__(self, end: socket.socket) -> None:
        self.channel, self.thread, self.path = Channel(end, self), 0, Path()
        self.objects: list[Any] = []
        self.held: dict[int, Held] = {}  # objects of the grader
        self.arrays: dict[int, Array] = {}  # copies of the grader's, by its numbers
        self.known: dict[int, bytes] = {}  # what the grader knows to be in them

    def serve(self) -> None:
        """Answers questions until the grader closes the socket."""
        self.thread = threading.get_ident()
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._reply(*self._answer(*self.channel.receive()))

    def _answer(self, question: str, *details: Any) -> tuple[Any, ...]:
        try:
            value = getattr(self, f"answer_{question}")(*details)
            return "answer", value, dict(self._changed())
        except BaseException as error:
            kind, is_of_grader = type(error).__name__, isinstance(error, GraderError)
            try:
                return "error", *told(error, self.path), kind, is_of_grader
            except BaseException:  # the error has a text of its own
                return "error", kind, "", kind, is_of_grader

    def _reply(self, *reply: Any) -> None:
        try:
            self.channel.send(*reply)
        except Exception as error:
            text = f"answers with what cannot be passed: {type(error).__name__}: {error}"
            self.channel.send("error", text, "", type(error).__name__, False)

    # ---- questions

    def answer_load(self, source: bytes, path: str, allowed: dict[str, tuple[str, ...]]) -> Any:
        """Runs adapters.py as a new module."""
        self.path = Path(path)
        self.objects, self.held, self.arrays, self.known = [], {}, {}, {}
        return load(_compiled(source, self.path), allowed)

    def answer_attribute(self, owner: Any, name: str) -> Any:
        """An attribute of an object that stays here."""
        return getattr(owner, name)

    def answer_call(
        self, function: Any, arguments: list[Any], named: dict[str, Any], arrays: dict[int, int]
    ) -> Any:
        """The result of a call; `arrays` has numbers of arguments that the grader reads later."""
        for position, number in arrays.items():
            given = self.arrays.setdefault(number, arguments[position])
            given[...] = arguments[position]
            arguments[position], self.known[number] = given, given.tobytes()
        return function(*arguments, **named)

    def answer_held_bytes(self, value: Any, apart: list[int]) -> int:
        """The bytes of the arrays that an object refers to, apart from those of these numbers."""
        seen = {id(self.arrays[number]) for number in apart}
        return sum(array.nbytes for array in arrays_in(value, seen))

    def answer_reference_ring(self) -> Any:
        """A ring all-reduce of the grader's."""
        return ring_all_reduce

    def _changed(self) -> Iterator[tuple[int, Array]]:
        for number, array in self.arrays.items():
            if (data := array.tobytes()) != self.known[number]:
                self.known[number] = data
                yield number, array

    # ---- objects by number

    def number(self, value: Any) -> Any:
        """What stands for a value that does not pass, None for one that does."""
        if isinstance(value, Held):
            return "grader", value._number, "", {}
        if passes_by_value(value):
            return None
        self.objects.append(value)
        return "student", len(self.objects) - 1, type(value).__name__, {}

    def numbered(self, reference: Any) -> Any:
        """The object that a reference stands for."""
        place, number, kind, facts = reference
        if place == "student":
            return self.objects[number]
        if number not in self.held:
            self.held[number] = HELD[kind](self._asker(number), number, facts)
        return self.held[number]

    def _asker(self, number: int) -> Any:
        def ask(name: str, *arguments: Any) -> Any:
            self.channel.send("call", number, name, list(arguments), self.line())
            answer, value = self.channel.receive()
            if answer == "error":
                kind, text = value
                raise type(kind, (GraderError,), {})(text)
            return value

        return ask

    def line(self) -> int:
        """The line of adapters.py on which this rank is."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame.f_code.co_filename != str(self.path):
            frame = frame.f_back
        return frame.f_lineno if frame is not None else NOWHERE


def arrays_in(value: Any, seen: set[int]) -> Iterator[Array]:
    """The arrays with memory of their own that an object refers to, but for those `seen`, by id."""
    if id(value) in seen or isinstance(value, type | Held):
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, np.ndarray):
        inside = (value.base,)
        if value.base is None:
            yield value
    elif isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple | set):
        inside = value
    else:
        slots = (vars(of).get("__slots__", ()) for of in type(value).__mro__)
        names = chain.from_iterable([x] if isinstance(x, str) else x for x in slots)
        named = {**getattr(value, "__dict__", {}), **{x: getattr(value, x, None) for x in names}}
        inside = named.values()
    for v in inside:
        yield from arrays_in(v, seen)


_codes: dict[tuple[bytes, Path], CodeType] = {}
_parses = threading.Lock()  # ranks that are threads cannot parse at the same time


def _compiled(source: bytes, path: Path) -> CodeType:
    with _parses:
        if (source, path) not in _codes:
            _codes[source, path] = compiled(source, path)
        return _codes[source, path]


def main(control: socket.socket, ends: list[socket.socket]) -> None:
    """Serves all ranks, until the grader closes `control`."""
    ranks = [Rank(end) for end in ends]
    for rank in ranks:
        threading.Thread(target=rank.serve, daemon=True).start()
    control.sendall(b"\1")  # it serves them
    while number := control.recv(1):
        control.sendall(ranks[number[0]].line().to_bytes(4, "big"))
    os._exit(0)


if __name__ == "__main__":
    first, *others = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    main(first, others)
