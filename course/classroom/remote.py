"""A student's process as the grader sees it: objects by number, whose use is a question."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

import nnmpi
from classroom.channel import Channel, Stays
from nnmpi.comm import AbortedError
from nnmpi.comm.transport.hub import DeadlockError
from nnmpi.options.quoting import shown

COURSE = Path(__file__).parents[1]
PATIENCE = 3.0  # seconds in which a process says on which line it computes, or ends


class StudentError(Exception):
    """What adapters.py raises in place of an answer.

    kind     the name of the error's type
    place    the lines of adapters.py that led to it, in parentheses; "" if none did
    """

    def __init__(self, reason: str, place: str = "", kind: str = "") -> None:
        super().__init__(f"{reason} {place}".strip())
        self.kind = kind


class MissingError(StudentError, AttributeError):
    """An object of adapters.py lacks an attribute."""


class Remote:
    """An object that stays in the student's process; its type has the name of that one's type."""

    def __init__(self, rank: "StudentRank", number: int) -> None:
        self._rank, self._number = rank, number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._rank.ask("attribute", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._rank.call(self, arguments, named)

    def __repr__(self) -> str:
        return f"a {type(self).__name__}"


def held_bytes(value: Any, apart: Sequence[np.ndarray[Any, Any]]) -> Any:
    """The bytes of the arrays that an object of adapters.py holds, but for arrays it was given."""
    rank: StudentRank = value._rank
    return rank.ask("held_bytes", value, [rank.array_number(array) for array in apart])


def reference_ring(adapters: Any) -> Any:
    """A ring all-reduce of ours in the process of adapters.py, whose messages cost the same."""
    rank: StudentRank = adapters._rank
    return rank.ask("reference_ring")


def source_of(adapters: Any) -> bytes:
    """The source of adapters.py."""
    rank: StudentRank = adapters._rank
    return rank.source


class StudentRank:
    """A rank's questions to the student's process, one at a time.

    doing     the method of the grader's that adapters.py has called, "" while it computes
    line      the line of adapters.py of that call
    asks      True from a question to its answer
    """

    def __init__(self, process: "StudentProcess", end: socket.socket, index: int) -> None:
        self._process, self._channel, self.index = process, Channel(end, self), index
        self.doing, self.line, self.asks, self.source = "", 0, False, b""
        self._objects: list[Any] = []  # of the grader, that adapters.py has got
        self._arrays: list[np.ndarray[Any, Any]] = []  # of arguments, which it may change
        self._error: BaseException | None = None  # of the last call by adapters.py

    def load(self, source: bytes, path: Path, allowed: Mapping[str, Sequence[str]]) -> Any:
        """A new module of adapters.py."""
        self.source, self._objects, self._arrays = source, [], []
        return self.ask("load", source, str(path), dict(allowed))

    def call(self, function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """The result of a call of an object of adapters.py, which may change its arguments."""
        arrays = {
            position: self.array_number(value)
            for position, value in enumerate(arguments)
            if type(value) is np.ndarray
        }
        return self.ask("call", function, list(arguments), named, arrays)

    def array_number(self, array: np.ndarray[Any, Any]) -> int:
        """The number of an argument: the same for the same array."""
        for number, known in enumerate(self._arrays):
            if known is array:
                return number
        self._arrays.append(array)
        return len(self._arrays) - 1

    def ask(self, *question: Any) -> Any:
        """The answer to a question; until it comes, adapters.py may call objects of the grader."""
        self.asks, self.doing = True, ""
        try:
            self._channel.send(*question)
            while True:
                reply, *details = self._channel.receive()
                if reply == "answer":
                    return self._answered(*details)
                if reply == "error":
                    raise self._raised(*details)
                self._carry_out(*details)
        except (StudentError, AbortedError):
            raise
        except (OSError, EOFError):
            raise StudentError(self._process.ended()) from None
        except Exception as error:  # what no process of ours would send
            self._process.kill()
            raise StudentError(f"adapters.py has answered with no value: {error!r:.200}") from None
        finally:
            self.asks = False

    def close(self) -> None:
        """Closes the socket."""
        self._channel.close()

    def _answered(self, value: Any, changed: dict[int, Any]) -> Any:
        for number, array in changed.items():
            self._arrays[number][...] = array
        return value

    def _raised(self, reason: str, place: str, kind: str, is_of_grader: bool) -> BaseException:
        error = self._error
        if (
            is_of_grader
            and isinstance(error, AbortedError)
            and not isinstance(error, DeadlockError)
        ):
            return error
        made = MissingError if kind == "AttributeError" else StudentError
        return made(shown(reason, 1000), shown(place, 1000), shown(kind))

    def _carry_out(self, number: int, name: str, arguments: list[Any], line: int) -> None:
        """Answers a call that adapters.py makes."""
        owner = self._objects[number]
        methods = owner.methods if isinstance(owner, Stays) else ("__call__",)
        if name not in methods:
            raise ValueError(f"a call of {name}")
        self.doing, self.line = name, line
        try:
            reply = "result", getattr(owner, name)(*arguments)
        except BaseException as error:
            self._error = error
            text = str(error)  # of a send, which is an isend and its wait
            text = text.replace(f"i{name}", name) if name in ("send", "recv") else text
            reply = "error", (type(error).__name__, text)
        self.doing = ""
        self._channel.send(*reply)

    # ---- objects by number

    def number(self, value: Any) -> Any:
        """What stands for an object that stays in one of the two processes."""
        if isinstance(value, Remote):
            return "student", value._number, "", {}
        is_function = isinstance(value, FunctionType)
        if not isinstance(value, Stays) and not is_function:
            return None
        kind = type(value).__name__ if isinstance(value, Stays) else "Function"
        facts = value.facts if isinstance(value, Stays) else ()
        self._objects.append(value)
        return (
            "grader",
            len(self._objects) - 1,
            kind,
            {name: getattr(value, name) for name in facts},
        )

    def numbered(self, reference: Any) -> Any:
        """The object that a reference from the student's process stands for."""
        place, number, kind, _ = reference
        if place == "grader":
            return self._objects[number]
        return type(shown(kind, 60), (Remote,), {})(self, int(number))


class StudentProcess:
    """A process that runs adapters.py for some ranks; another one is started where it has ended."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._start()

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(1 + self._ranks)]
        ours, theirs = zip(*pairs, strict=True)
        fds = [end.fileno() for end in theirs]
        command = [sys.executable, "-P", "-m", "classroom.process", *map(str, fds)]
        self._process = subprocess.Popen(
            command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=2, env=environment()
        )
        for end in theirs:
            end.close()
        self._control = ours[0]
        self._control.recv(1)  # it has started, which no deadline counts
        self._control.settimeout(PATIENCE)
        self.ranks = [StudentRank(self, end, index) for index, end in enumerate(ours[1:])]

    def revive(self) -> None:
        """Starts the process again if it has ended."""
        if self._process.poll() is not None:
            self.close()
            self._start()

    def ended(self) -> str:
        """How it has ended, for a result."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self.kill()
        status = self._process.returncode
        named = f" ({signal.Signals(-status).name})" if -status in {*signal.Signals} else ""
        return f"the process that runs adapters.py has ended with status {status}{named}"

    def line(self, rank: int) -> int:
        """The line of adapters.py on which a rank computes, 0 if it does not say."""
        try:
            self._control.sendall(bytes([rank]))
            return int.from_bytes(self._control.recv(4), "big")
        except OSError:
            self._control.close()  # a late answer would be that of the next rank
            return 0

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process, and closes its sockets."""
        self.kill()
        self._control.close()
        for rank in self.ranks:
            rank.close()


def environment() -> dict[str, str]:
    """The environment of processes that import the classroom and nnmpi from where they are."""
    path = str(COURSE), str(Path(nnmpi.__file__).parents[1]), os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
