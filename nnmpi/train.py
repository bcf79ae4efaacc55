"""The command `python -m nnmpi.train`: flags to a Config, a Trainer run, an exit status.

0: it trained. 1: the run failed. 2: unusable arguments. 130: stopped by Ctrl-C or SIGUSR1.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from types import FrameType
from typing import Any

from nnmpi import blas, cli
from nnmpi.comm import Comm, OtherRankError, job
from nnmpi.config import Config, from_toml, options
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.dry_run import summary
from nnmpi.run.report import LostOutputError, Report, check_output
from nnmpi.run.trainer import Trainer


def fail(message: object, status: int = 1) -> int:
    """Says why, and gives the exit status."""
    return cli.fail("nnmpi.train", message, status)


def parser() -> argparse.ArgumentParser:
    """One flag for every option of Config, in its groups, and --config."""
    p = cli.Parser(
        prog="python -m nnmpi.train",
        description="Train a model.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    p.add_argument("--config", metavar="FILE.toml", help="options by name; flags win over them")
    groups: dict[str, Any] = {}
    for o in options():
        m = o.metadata
        if m["group"] not in groups:
            groups[m["group"]] = p.add_argument_group(m["group"])
        flags = [f"--{n.replace('_', '-')}" for n in (o.name, m["alias"]) if n is not None]
        default = "" if o.default in (None, False) else f" (default {o.default})"
        text = f"{m['help']}{default}".replace("%", "%%")
        if m["kind"] is bool:
            groups[m["group"]].add_argument(
                *flags, action=argparse.BooleanOptionalAction, help=text
            )
        else:
            choices = m["choices"] or None
            shown = None if choices else o.name.split("_")[-1].upper()
            groups[m["group"]].add_argument(
                *flags, type=m["kind"], choices=choices, metavar=shown, help=text
            )
    return p


def config(arguments: Sequence[str]) -> Config:
    """The Config that the arguments ask for."""
    given = vars(parser().parse_args(arguments))
    path = given.pop("config", None)
    c = replace(Config() if path is None else from_toml(path), **given)
    for what, written in (("log", c.log), ("save", c.save)):
        if written:
            check_output(what, written, {"config": path})
    return c


class Wish:
    """To end the run after the step under way. It may be said before there is a run."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._said = False

    def say(self) -> None:
        """The run, if there is one, ends soon."""
        self._said = True
        if self._trainer is not None:
            self._trainer.stop()

    def hear(self, trainer: Trainer) -> None:
        """That is the run; it may have to end before it has begun."""
        self._trainer = trainer
        if self._said:
            trainer.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    wish = Wish()
    with handled("SIGUSR1", lambda *_: wish.say()):  # launchers pass it on to ranks
        return _main(sys.argv[1:] if arguments is None else arguments, wish)


def _main(arguments: Sequence[str], wish: Wish) -> int:
    try:
        comm = job()
    except RuntimeError as error:  # MPI that cannot be used
        return fail(error)
    try:
        blas.default_threads(blas.cores(len(comm.node())))
        trainer = trainer_of(comm, arguments)
        report = trainer.report()
    except OtherRankError:
        return 0  # that one has said why, and its status is that of the job
    except ValueError as error:
        return fail(error, 2)
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}" if error.filename else error, 2)
    except MemoryError as error:
        return fail(f"out of memory: {error}; take a smaller model or less data", 2)
    except KeyboardInterrupt:
        return fail("interrupted before the first step", 130)
    wish.hear(trainer)
    try:
        return run(trainer, report, wish)
    except LostOutputError as error:  # a reader that has gone (`| head`) needs no message
        return 1 if isinstance(error.__cause__, BrokenPipeError) else fail(error)
    except KeyboardInterrupt:
        return fail("interrupted; nothing was saved", 130)
    except OtherRankError:
        return 0
    except (AgreedError, ValueError, MemoryError) as error:
        return failed(trainer, error)
    finally:
        cli.settle()


def trainer_of(comm: Comm, arguments: Sequence[str]) -> Trainer:
    """A run that fits together, on all ranks, or one error on one of them."""
    error: Exception | None = None
    try:
        with redirect_stdout(sys.stdout if comm.rank == 0 else StringIO()):  # of --help
            c = config(arguments)
    except ValueError as caught:
        error = caught
    comm.agree(error)
    if c.reproducible:
        blas.one_thread()
    return Trainer(c, comm=comm)


def failed(trainer: Trainer, error: Exception) -> int:
    """One line for a run of which all ranks know that it failed; else this rank ends the others."""
    if isinstance(error, MemoryError):
        error = MemoryError(f"out of memory: {error}; try a smaller --batch-size")
    alike = isinstance(error, AgreedError)
    status = 2 if isinstance(error, ValueError) and not trainer.step else 1
    if alike and not trainer.is_first:
        return status  # the first rank says why
    if trainer.comm.size > 1 and not (alike or trainer.agreed):
        trainer.comm.abort(str(error))
    return fail(error, status)


def run(trainer: Trainer, report: Report, wish: Wish) -> int:
    """Train, or only tell what it would take."""
    if trainer.config.dry_run:
        with report:
            report.event(summary(trainer))
        trainer.close()
        return 0

    def first(*_: object) -> None:
        wish.say()
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # the second Ctrl-C ends it at once

    with handled("SIGINT", first):
        result = trainer.fit(report)
    return 130 if result["event"] == "stopped" else 0


@contextmanager
def handled(name: str, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """What to do at a signal, where there is one of that name; only a main thread is told of it."""
    number = getattr(signal, name, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


if __name__ == "__main__":
    sys.exit(main())
