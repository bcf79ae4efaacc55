"""The command `python -m nnmpi.train`: trains a model, under mpirun on many ranks.

Exit status: 0 trained, 1 failed, 2 unusable arguments, 75 suspended: --resume continues from a
checkpoint, 130 stopped by Ctrl-C, or by SIGUSR1 without --checkpoint-dir. If several ranks stop or
fail together, the first of them has this status, and the others have 0.

Signals are handled as follows, each time from this event on:

Python starts            the system's default: SIGUSR1 ends the process
nnmpi is imported        SIGUSR1 is held back
the command starts       SIGUSR1 is noted, Ctrl-C ends the run
the Trainer is made      both stop the run after the current step; with --checkpoint-dir they, and
                         SIGTERM, write a checkpoint first
the run is over          both are ignored: MPI_Finalize may take a while
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

from nnmpi.arrays import blas
from nnmpi.comm import Comm, OtherRankError, RankLost, ended, job, launched, traceback_text
from nnmpi.comm.stderr import print_error
from nnmpi.io.files.model_files import model_file
from nnmpi.io.files.outputs import saved_since, version
from nnmpi.io.output import LostOutputError, Report, open_report
from nnmpi.options import cli
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.arrange import strategy_of
from nnmpi.parallel.strategy import AgreedError, NotFiniteError
from nnmpi.run.command import rank_0_prints
from nnmpi.run.setup import threads
from nnmpi.run.start_events import complete_event
from nnmpi.run.trainer import Trainer
from nnmpi.run.training import SUPERVISIONS, part_of

STOPS = (signal.SIGUSR1, signal.SIGINT)
"""The signals that stop a run."""

MORE_TO_DO = 75
"""The exit status of a run that was suspended; EX_TEMPFAIL of sysexits.h."""


class PrintCombinations(argparse.Action):
    """The action of a flag: prints which options cannot be combined, and ends the command."""

    def __call__(self, of: argparse.ArgumentParser, *_: object) -> NoReturn:
        from nnmpi.parallel.combinations import page

        with suppress(BrokenPipeError):  # the reader has gone (`| head`)
            print(page())
        of.exit()


def parser() -> cli.Parser:
    """The parser of the command line: --config, and a flag for each option of Config, in groups."""
    p = cli.Parser("nnmpi.train", description="Train a model.", argument_default=argparse.SUPPRESS)
    p.add_argument("--config", metavar="FILE.toml", help="a file of options; flags override it")
    code = "import the package.module:NAME that the file of --config names"
    p.add_argument("--allow-code", action="store_true", default=False, help=code)
    combinations = "print which options cannot be combined, and exit"
    p.add_argument("--combinations", action=PrintCombinations, nargs=0, help=combinations)
    cli.add_flags(p)
    return p


def config(arguments: Sequence[str]) -> Config:
    """Returns the Config of the command line, whose flags override the --config file."""
    given = vars(parser().parse_args(arguments))
    path, is_trusted = given.pop("config", None), given.pop("allow_code")
    of_file = Config() if path is None else cli.from_toml(path)
    if not is_trusted:
        cli.refuse_code(path, of_file, given)
    c = replace(of_file, **cli.with_layout(given))
    if given.get("model") == Config().model and c.load:
        # here, as a Config cannot tell a given --model from the default
        model_file(c.load).resolved(c, is_named=True)
    return c


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; afterwards signals are handled as before."""
    with restored_handlers():
        return command(sys.argv[1:] if arguments is None else arguments)


def command(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status, in a process that ends afterwards: after the
    run, signals that would stop a run are ignored."""
    # a list, as Event.set takes a lock, which the interrupted thread may hold
    early: list[int] = []  # signals before the first step
    handle(signal.SIGUSR1, lambda number, _: early.append(number))  # mpirun sends it to all ranks
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])  # see `held_signals`
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handle(signal.SIGINT, interrupt)
    try:
        return _main(arguments, early)
    except LostOutputError as error:  # no message if the reader of a pipe has gone (`| head`)
        return 1 if isinstance(error.__cause__, BrokenPipeError) else fail(error)
    except Exception as error:
        if launched() > 1:  # excepthook of nnmpi.comm prints it and ends the other ranks
            raise
        print_error(traceback_text(error))
        return 1
    finally:
        cli.settle()
        ignore_stops()


def _main(arguments: Sequence[str], early: Sequence[int]) -> int:
    try:
        comm = job()
    except OtherRankError:  # before RuntimeError, of which it is a subclass
        return 0  # here and below, the other rank has the status of the job, and prints why
    except ValueError as error:  # NNMPI_TIMEOUT or NNMPI_DEBUG
        return fail(error, 2)
    except RuntimeError as error:  # MPI cannot be used
        return fail(error)
    try:
        c = agreed_config(comm, arguments)
    except OtherRankError:
        return 0
    except ValueError as error:
        return fail(error, 2)
    except KeyboardInterrupt:
        return interrupted(comm, " before the first step")
    return train(c, comm, early)


def train(c: Config, comm: Comm, early: Sequence[int]) -> int:
    """Makes a Trainer from the config, runs it, and returns the exit status; if signals arrived
    before (`early`), the run stops early."""
    try:
        if instead := part_of(c, lambda part: part.instead):
            return instead(c, comm)
        trainer = Trainer(c, comm=comm)
        if trainer.fitted and trainer.is_first:
            print_error(f"nnmpi.train: {trainer.fitted}")
        if trainer.resumed and trainer.resumed.is_over:
            digest = "" if trainer.is_spare else trainer.strategy.full_state.sha256()
            with open_report(replace(c, log=None), comm) as events:
                events.event(complete_event(trainer.resumed, digest))
            return 0
        report = opened(trainer, comm)
    except OtherRankError:
        return 0
    except ValueError as error:
        return fail(error, 2)
    except OSError as error:
        return fail(f"{shown(error.filename)}: {error.strerror}" if error.filename else error, 2)
    except MemoryError as error:
        return fail(f"out of memory: {error}; take a smaller model or less data", 2)
    except KeyboardInterrupt:
        return interrupted(comm, " before the first step")
    except Exception as error:
        # no Trainer exists yet with which the other ranks could go on, so end them
        if comm.fault_tolerant and not isinstance(error, LostOutputError):
            comm.abort(traceback_text(error))
        raise
    try:
        return run(trainer, report, early, comm)
    except OtherRankError:
        if comm.fault_tolerant:  # under ULFM the job ends only if every rank raises
            raise
        return 0
    except (AgreedError, NotFiniteError, ValueError, MemoryError) as error:
        return failed(trainer, error, comm)


def opened(trainer: Trainer, comm: Comm) -> Report | None:
    """Opens the report of rank 0 (log and output) before the run; every rank calls it.

    Returns None on other ranks and, if a rank is lost, on all: `fit`, which notices the loss too,
    opens the report. If the loss was before the call, this function does not communicate, since
    other ranks may be in `fit` already.
    """
    if comm.is_abandoned:
        return None
    mark = trainer.resumed and trainer.resumed.mark
    restarts = None if trainer.resumed else SUPERVISIONS.chosen(trainer.config)
    try:
        if not trainer.is_spare:
            blas.default_threads(threads.agreed_threads(trainer.arrangement, trainer.comm))
        report = open_report(trainer.config, comm, appends=restarts is not None, mark=mark)
    except RankLost:
        return None
    if restarts and report.mark and report.mark.size:
        print_error(f"nnmpi.train: {restarts.begins_anew(trainer.config)}")
    return report if trainer.is_first else None


def agreed_config(comm: Comm, arguments: Sequence[str]) -> Config:
    """Returns the config of the command line, and sets the number of BLAS threads for it. Every
    rank calls it; an error on one rank is raised on all."""

    def read() -> Config:
        blas.tune()
        with rank_0_prints(comm):  # --help would print on every rank
            return config(arguments)

    try:
        c = all_or_none(comm, read)
    except RankLost:  # go on: the Trainer arranges the remaining ranks
        c = read()
    blas.default_threads(1)  # until the model is known
    if strategy_of(c).one_thread:
        blas.set_threads(1)
    return c


def run(trainer: Trainer, report: Report | None, early: Sequence[int], comm: Comm) -> int:
    """Runs the training of a Trainer, and returns the exit status. SIGUSR1 and Ctrl-C stop it after
    the current step, a second Ctrl-C at once. `early` has signals that arrived before."""
    old_version, interrupts = version(trainer.config.save), list[int]()

    def stop_or_interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        trainer.suspend()
        handle(signal.SIGINT, interrupt)

    handle(signal.SIGINT, stop_or_interrupt)
    for number in (signal.SIGUSR1, *[signal.SIGTERM] * trainer.checkpoints.are_written):
        handle(number, lambda *_: trainer.suspend())
    if early:
        trainer.suspend()
    try:
        result = trainer.fit(report)
    except KeyboardInterrupt:
        return interrupted(comm, f"; {saved_since(old_version, trainer.config.save)}")
    if not trainer.is_first or result["event"] not in ("stopped", "suspended"):
        return 0
    return MORE_TO_DO if result["event"] == "suspended" and not interrupts else 130


def interrupt(*_: object) -> NoReturn:
    """A signal handler for Ctrl-C: raises KeyboardInterrupt; another one ends the process."""
    handle(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


def interrupted(comm: Comm, how: str) -> int:
    """Prints that the run was interrupted, followed by the text `how` (when, or what was saved),
    ends the other ranks, and returns exit status 130."""
    if comm.size > 1:
        comm.abort(f"interrupted{how}", 130)
    return fail(f"interrupted{how}", 130)


def failed(trainer: Trainer, error: Exception, comm: Comm) -> int:
    """Prints the error of a run, and returns the exit status; ends the other ranks of the job,
    unless they have the same error or can continue without this one."""
    if isinstance(error, MemoryError):
        error = MemoryError(f"out of memory: {error}; try a smaller --batch-size")
    status = 2 if isinstance(error, ValueError) and not trainer.step else 1
    if isinstance(error, AgreedError):
        status = MORE_TO_DO if error.checkpoint else status
        if trainer.is_first:
            return fail(error, status)
        # the job needs one rank with this status, and rank 0 may be lost before it exits
        return status if comm.fault_tolerant else 0
    if comm.fault_tolerant and not isinstance(error, NotFiniteError):
        raise error
    if comm.size > 1:
        comm.abort(str(error))
    return fail(error, status)


def handle(number: signal.Signals, handler: Callable[..., Any] | int | None) -> None:
    """Installs a handler of a signal, in the main thread; elsewhere Python refuses, so it does
    nothing."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(number, handler)


def ignore_stops() -> None:
    """Sets the signals that stop a run to be ignored; meanwhile this thread blocks them, since
    Python reports an error if one arrives while its handler is replaced."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    for number in STOPS:
        handle(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def restored_handlers() -> Iterator[None]:
    """A context at whose end the handlers of the signals that stop a run are as before."""
    handlers = [(number, signal.getsignal(number)) for number in (*STOPS, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in handlers:
            handle(number, handler)


def fail(message: object, status: int = 1) -> int:
    """Prints one line on stderr and returns the exit status."""
    return cli.fail("nnmpi.train", message, status)


if __name__ == "__main__":
    sys.exit(ended(command(sys.argv[1:])))
