"""The command `python -m nnmpi.train`: flags to a Config, a Trainer run, an exit status.

0: it trained. 1: the run failed. 2: unusable arguments. 130: stopped by Ctrl-C.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from nnmpi import blas, command
from nnmpi.config import Config, from_toml, options
from nnmpi.report import LostOutputError, Report, check_log
from nnmpi.summary import summary
from nnmpi.trainer import DivergedError, Trainer


def refuse(message: object) -> NoReturn:
    """Unusable arguments."""
    raise SystemExit(fail(message, 2))


def fail(message: object, status: int = 1) -> int:
    """Says why, and gives the exit status."""
    return command.fail("nnmpi.train", message, status)


def parser() -> argparse.ArgumentParser:
    """One flag for every option of Config, in its groups, and --config."""
    p = command.Parser(
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
        flag = f"--{o.name.replace('_', '-')}"
        default = "" if o.default in (None, False) else f" (default {o.default})"
        text = f"{m['help']}{default}".replace("%", "%%")
        if m["kind"] is bool:
            groups[m["group"]].add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            choices = m["choices"] or None
            shown = None if choices else o.name.split("_")[-1].upper()
            groups[m["group"]].add_argument(
                flag, type=m["kind"], choices=choices, metavar=shown, help=text
            )
    return p


def config(arguments: Sequence[str]) -> Config:
    """The Config that the arguments ask for."""
    given = vars(parser().parse_args(arguments))
    path = given.pop("config", None)
    c = replace(Config() if path is None else from_toml(path), **given)
    if c.log:
        check_log(c.log, {"config": path})
    return c


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    blas.default_threads(1)  # a rank is one thread: more wait for each other longer than they help
    try:
        c = config(sys.argv[1:] if arguments is None else arguments)
        trainer = Trainer(c)
        report = Report(c.log, c.quiet)
    except ValueError as error:
        refuse(error)
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}" if error.filename else error)
    except MemoryError as error:
        refuse(f"out of memory: {error}; take a smaller model or less data")
    except KeyboardInterrupt:
        return fail("interrupted before the first step", 130)
    try:
        return run(trainer, report)
    except DivergedError as error:
        return fail(error)
    except ValueError as error:
        return fail(error, 1 if trainer.step else 2)
    except MemoryError as error:
        return fail(f"out of memory: {error}; try a smaller --batch-size")
    except LostOutputError as error:  # a reader that has gone (`| head`) needs no message
        return 1 if isinstance(error.__cause__, BrokenPipeError) else fail(error)
    except KeyboardInterrupt:
        return fail("interrupted; nothing was saved", 130)
    finally:
        command.settle()


def run(trainer: Trainer, report: Report) -> int:
    """Train, or only tell what it would take."""
    if trainer.config.dry_run:
        with report:
            report.event(summary(trainer))
        return 0
    with stopping(trainer):
        result = trainer.fit(report)
    return 130 if result["event"] == "stopped" else 0


@contextmanager
def stopping(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C ends the run after the step under way, the second at once."""

    def stop(number: int, frame: object) -> None:
        trainer.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
