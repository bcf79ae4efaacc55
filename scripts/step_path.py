"""Prints the files and functions of nnmpi that a training step enters, in the order of first calls.

    python scripts/step_path.py 4 --model digits-cnn --data digits --zero 3 --pp 2 --rank 2

The arguments are the number of ranks, which are threads, and options of nnmpi.train. It follows one
rank (--rank, or 0) in its fourth step, when everything that is measured once has been measured.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nnmpi
from nnmpi import Config, Trainer, train
from nnmpi.comm import Comm, thread_ranks
from nnmpi.parallel.step.executor import StepState

PACKAGE = f"{Path(nnmpi.__file__).parent}/"

Calls = dict[tuple[str, str], int]
"""How often each function was called, by (file, function), in the order of first calls."""


def profile_step(comm: Comm, config: Config, note: Callable[[FrameType, str, Any], None]) -> None:
    """Makes four steps on this rank; `note` is its profile function in the fourth one."""
    trainer = Trainer(config, comm=comm)
    strategy, loader = trainer.strategy, trainer.train
    epochs = (StepState(epoch * len(loader), epoch) for epoch in range(4))  # of a step or more
    steps = chain.from_iterable(strategy.steps(loader, start) for start in epochs)
    trainer.run.in_epoch = True  # as in `fit`: between steps by hand, a user may change the model
    for _ in range(3):
        next(steps)
    sys.setprofile(note)
    next(steps)
    sys.setprofile(None)
    comm.barrier()  # a rank that has left would be missed


def calls_of_a_step(comm: Comm, config: Config) -> Calls:
    """The calls of nnmpi's functions in the fourth step of this rank."""
    calls: Calls = defaultdict(int)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            calls[path.removeprefix(PACKAGE), frame.f_code.co_name] += 1

    profile_step(comm, config, note)
    return calls


def main(arguments: Sequence[str]) -> None:
    """Prints a line for each file."""
    usage = "python scripts/step_path.py RANKS [--rank N] [options of nnmpi.train]"
    ranks, *others = arguments or [""]
    if not ranks.isdecimal() or int(ranks) < 1:
        raise SystemExit(f"usage: {usage}")
    parser = argparse.ArgumentParser(usage=usage, add_help=False, allow_abbrev=False)
    parser.add_argument("--rank", type=int, default=0, choices=range(int(ranks)))
    given, options = parser.parse_known_args(others)
    calls = thread_ranks.run(int(ranks), calls_of_a_step, train.config(options))[given.rank]
    files = defaultdict[str, list[str]](list)
    for (path, name), count in calls.items():
        files[path].append(f"{name} x{count}" if count > 1 else name)
    for path, names in files.items():
        print(f"{path:40} {', '.join(names)}")
    print(f"{len(files)} files, {len(calls)} functions, {sum(calls.values())} calls")


if __name__ == "__main__":
    main(sys.argv[1:])
