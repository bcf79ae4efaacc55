"""One rank of a training run dies at a random moment, from its first line to its last.

The job ends in time, with a status that is not 0, and names the rank. No process is left, and the
model that was saved before is there, whole, or the new one.
"""

import os
import re
import time
from pathlib import Path
from uuid import uuid4

import numpy as np
from failing_rank import HOW
from fuzzing import GOOD, Fault, Outcome
from helpers import mpijob

import nnmpi
from nnmpi.io.files.saving import PARAMETERS
from nnmpi.nn.models import iris_mlp

TIMEOUT = 6.0  # of NNMPI_TIMEOUT
LIMIT = 60.0  # of a job
LAST = 5.0  # the last moment of a death; starting takes one to two seconds
ENDS = 8.0  # seconds in which processes vanish when a job is over
RUNS = (
    ("--epochs", "400"),
    ("--epochs", "400", "--allreduce", "ring", "--no-overlap"),
    ("--epochs", "150", "--reproducible"),
    ("--epochs", "150", "--zero", "1"),
    ("--epochs", "150", "--sync", "asp"),
    ("--epochs", "150", "--pp", "2", "--micro-batches", "2"),
)


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    how, run = str(rng.choice(list(HOW))), RUNS[rng.integers(len(RUNS))]
    size, seconds = int(rng.integers(2, 4)), float(rng.uniform(0, LAST))
    size = 2 if "--pp" in run else size
    return died(how, size, int(rng.integers(size)), seconds, run, folder)


def died(
    how: str, size: int, rank: int, seconds: float, run: tuple[str, ...], folder: Path
) -> Outcome:
    """The outcome of a run of `size` ranks of which one dies after so many seconds."""
    path, mark = folder / "m.safetensors", uuid4().hex
    nnmpi.save(iris_mlp().state_dict(), path)
    arguments = ("--json", "--model", "iris-mlp", "--data", "iris", "--save", str(path), *run)
    program = Path(__file__).with_name("failing_rank.py")
    env = {"NNMPI_TIMEOUT": str(TIMEOUT), "NNMPI_TEST_MARK": mark}
    what = f"{size} ranks, {' '.join(run)}: rank {rank} {how} after {seconds:.3f} s"
    ended = mpijob.run(
        *(size, program, how, f"{seconds:.3f}", str(rank), *arguments), timeout=LIMIT, env=env
    )
    left = left_behind(mark)
    text = f"{what}; status {ended.status}; {ended.err[-3000:]}"
    if ended.status is None or left:
        return Outcome(Fault.HUNG, f"{text}; left: {left}")
    if is_lost(path, ended.out):
        return Outcome(Fault.LOST, text)
    # it may die when it has nothing left to do; and a run that is interrupted once is stopped
    is_over = '"event": "done"' in ended.out or '"event": "stopped"' in ended.out
    if not is_over and (ended.status == 0 or not _is_named(ended.err, rank, size)):
        return Outcome(Fault.UNNAMED, text)
    return GOOD


def _is_named(text: str, rank: int, size: int) -> bool:
    """By us, or by the launcher: Open MPI writes `[prterun-host-1@1,2]` of rank 2.

    Or as the only one that does not report where it waits. Before MPI has started, ranks know of
    each other only that somebody is missing.
    """
    waiting = {int(number) for number in re.findall(r"rank (\d+) has waited", text)}
    rest = {*range(size)} - waiting
    named = bool(re.search(rf"\brank {rank}\b|@\d+,{rank}\]", text))
    return named or rest == {rank} or "Timeout (" in text


def is_lost(path: Path, out: str) -> bool:
    """Whether the file is missing or damaged, or is not the model that the run says it trained."""
    try:
        state, metadata = nnmpi.load(path, with_metadata=True)
    except ValueError:
        return True
    said = re.search(rf'"{PARAMETERS}": "(\w+)"', out)
    is_other = said is not None and metadata.get(PARAMETERS) != said[1]
    return is_other or state.keys() != iris_mlp().state_dict().keys()


def left_behind(mark: str) -> list[int]:
    """The processes of a job that are still there some seconds after its end."""
    end = time.monotonic() + ENDS
    while (found := _marked(mark.encode())) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _marked(mark: bytes) -> list[int]:
    """Processes with the mark in their environment; Linux only."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            if mark in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found
