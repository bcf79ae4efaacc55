"""What fuzzers share: the outcome of a case, damage to bytes, and the check of a message."""

import io
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnmpi import train

LONGEST = 1500  # characters of a message


class Fault(StrEnum):
    """What is wrong with how a case came out."""

    HUNG = "hung"  # it did not end in time
    UNNAMED = "unnamed"  # the error does not say what was wrong: a traceback, no option, no rank
    LOST = "lost"  # a file is damaged or missing that should be there
    WRONG = "wrong"  # an answer that is not the right one


class Outcome(NamedTuple):
    """How a case came out: its fault, if any, and what happened."""

    fault: Fault | None
    what: str


GOOD = Outcome(None, "")


class Fuzzer(NamedTuple):
    """A case makes its input from the generator, in a folder of its own.

    cases: how many the tests try, or a sample of them
    limit: seconds for one case
    """

    case: Callable[[np.random.Generator, Path], Outcome]
    cases: int
    limit: float


class OutOfTimeError(BaseException):
    """Not an Exception, so that no handler takes it for an error of the case."""


def tried(fuzzer: Fuzzer, seed: int, folder: Path) -> Outcome:
    """The outcome of the case of this seed."""
    try:
        with time_limit(fuzzer.limit):
            return fuzzer.case(np.random.default_rng(seed), folder)
    except OutOfTimeError:
        return Outcome(Fault.HUNG, f"not over after {fuzzer.limit:g} s")
    except Exception:
        return Outcome(Fault.UNNAMED, traceback.format_exc())


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises OutOfTimeError in the main thread; then restores the timer of pytest-timeout."""

    def out_of_time(*_: object) -> None:
        raise OutOfTimeError

    handler = signal.signal(signal.SIGALRM, out_of_time)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


def judged(message: str, *names: str) -> Outcome:
    """Whether a message is one short line that prints, and has one of the names."""
    if not message or not message.isprintable() or len(message) > LONGEST:
        return Outcome(Fault.UNNAMED, f"not one short line: {message[:3000]!r}")
    if not any(name in message for name in names):
        return Outcome(Fault.UNNAMED, f"none of {names[:8]} in: {message}")
    return GOOD


def refused(f: Callable[[], Any], *names: str) -> tuple[Any, Outcome]:
    """The result of f, or whether its ValueError has one of the names."""
    try:
        return f(), GOOD
    except ValueError as error:
        return None, judged(str(error), *names)


def command(arguments: list[str], *names: str) -> tuple[object, Outcome]:
    """The exit status of the command, and whether its error has one of the names."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status: object = train.main(arguments)
        except SystemExit as exit:  # of --help
            status = exit.code
    message = err.getvalue().removesuffix("\n")
    if status == 0:
        return status, Outcome(Fault.UNNAMED, message) if message else GOOD
    outcome = judged(message, *names)
    return status, outcome._replace(what=f"{outcome.what}; arguments {arguments!r:.2000}")


def damaged(rng: np.random.Generator, content: bytes) -> bytes:
    """The content with one to three kinds of damage."""
    kinds = list(DAMAGE.values())
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        if data:
            kinds[rng.integers(len(kinds))](rng, data)
    return bytes(data)


def _place(rng: np.random.Generator, data: bytearray) -> int:
    """Any place, more often one in the first hundred bytes, where headers are."""
    return int(rng.integers(min(len(data), 100) if rng.random() < 0.5 else len(data)))


def _flip(rng: np.random.Generator, data: bytearray) -> None:
    data[_place(rng, data)] ^= 1 << int(rng.integers(8))


def _cut(rng: np.random.Generator, data: bytearray) -> None:
    del data[_place(rng, data) :]


def _remove(rng: np.random.Generator, data: bytearray) -> None:
    start = _place(rng, data)
    del data[start : start + int(rng.integers(1, 40))]


def _insert(rng: np.random.Generator, data: bytearray) -> None:
    start = _place(rng, data)
    data[start:start] = rng.bytes(int(rng.integers(1, 40)))


def _overwrite(rng: np.random.Generator, data: bytearray) -> None:
    start, n = _place(rng, data), int(rng.integers(1, 9))
    fill = (bytes(n), b"\xff" * n, b"9" * n, rng.bytes(n))[rng.integers(4)]
    data[start : start + n] = fill[: len(data) - start]


def _repeat(rng: np.random.Generator, data: bytearray) -> None:
    start = _place(rng, data)
    data[start:start] = data[start : start + int(rng.integers(1, 200))]


DAMAGE: dict[str, Callable[[np.random.Generator, bytearray], None]] = {
    "a flipped bit": _flip,
    "the end cut off": _cut,
    "a piece removed": _remove,
    "a piece put in": _insert,
    "a piece overwritten": _overwrite,
    "a piece repeated": _repeat,
}
