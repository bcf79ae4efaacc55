"""The command `python -m nnmpi.train`: flags to a Config, a Trainer run, an exit status.

0: it trained. 1: the run failed. 2: unusable arguments. 130: stopped by Ctrl-C.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from nnmpi.config import Config, from_toml, options
from nnmpi.report import Report
from nnmpi.summary import summary
from nnmpi.trainer import DivergedError, Trainer


class _Parser(argparse.ArgumentParser):
    """argparse with the house's errors: one line on stderr, exit status 2."""

    def error(self, message: str) -> NoReturn:
        refuse(message)


def refuse(message: object) -> NoReturn:
    """Unusable arguments."""
    print(f"nnmpi.train: {message}", file=sys.stderr)
    raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """One flag for every option of Config, in its groups, and --config."""
    p = _Parser(
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
    base = from_toml(given.pop("config")) if "config" in given else Config()
    return replace(base, **given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        c = config(sys.argv[1:] if arguments is None else arguments)
        trainer = Trainer(c)
        report = Report(c.log, c.quiet)
    except ValueError as error:
        refuse(error)
    if not c.dry_run:
        return run(trainer, report)
    with report:
        report.event(summary(trainer))
    return 0


def run(trainer: Trainer, report: Report) -> int:
    """Train; the first Ctrl-C ends the run after the step under way, the second at once."""

    def stop(number: int, frame: object) -> None:
        trainer.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        result = trainer.fit(report)
    except DivergedError as error:
        print(f"nnmpi.train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nnmpi.train: interrupted; nothing was saved", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, before)
    return 130 if result["event"] == "stopped" else 0


if __name__ == "__main__":
    raise SystemExit(main())
