"""Ranks of a real job are killed by SIGKILL at random moments, under `mpirun --with-ft ulfm`.

Kills come one after the other, or several at once, until one rank is left. The job ends with status
0 and the losses of a run on one rank; its log has each event once, and a `recovered` for the
deaths. No process and no memory is left.

Where ranks are gone that had something alone, the run ends by its documented line; counts apart.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from fuzz_deaths import left_behind
from fuzzing import GOOD, Fault, Outcome
from helpers import mpijob
from helpers.once import once
from helpers.training.recovered import NOTHING_LEFT

LIMIT = 150.0  # seconds of a job
LATE = 3.0  # seconds before the end in which a death may be noticed by nobody
SILENT = ("recovered", "progress", "step", "passes")
ONLY_SPARE = "no remaining rank has a part of the model"
SHARED_MEMORY = Path("/dev/shm")
BACKING = "OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory"
"""Name the folder where Open MPI keeps the files of messages and windows in shared memory."""
PATH = os.pathsep.join((str(mpijob.ROOT), str(mpijob.ROOT / "tests")))
Options = tuple[str, ...]

FLOAT64 = ("--dtype", "float64")
MODELS: dict[str, Options] = {
    "mlp": (*FLOAT64, "--model", "mlp:64-24-16-10", "--batch-size", "24", "--epochs", "6"),
    "cnn": (*FLOAT64, "--epochs", "4"),
    "gpt": (
        *FLOAT64,
        *("--model", "gpt:2x2x16", "--data", f"text:{mpijob.ROOT / 'README.md'}"),
        *("--context", "24", "--batch-size", "16", "--epochs", "4"),
    ),
    "experts": (*FLOAT64, "--model", "helpers.training.branch_models:experts", "--epochs", "4"),
    "reproducible": ("--reproducible", "--model", "mlp:64-24-16-10", "--epochs", "6"),
    "16 bits": ("--dtype", "float16", "--model", "mlp:64-24-16-10", "--epochs", "6"),
}
"""What runs, on one rank as well."""


class Row(NamedTuple):
    """A layout, on so many ranks; `needs` is how many have to be left so that nothing is lost."""

    model: str
    ranks: int
    options: Options
    needs: int = 1


BACKUP = ("--backup", "4")
HALVED = ("--micro-batches", "2")
ROWS: dict[str, Row] = {
    "ring": Row("mlp", 4, ("--allreduce", "ring")),
    "shared": Row("mlp", 4, ("--allreduce", "shared")),
    "cnn": Row("cnn", 3, ()),
    "dp x pp": Row("mlp", 4, ("--dp", "2", "--pp", "2", *HALVED), 3),
    "dp x tp": Row("mlp", 4, ("--dp", "2", "--tp", "2"), 3),
    "zero 1": Row("mlp", 3, ("--zero", "1", *BACKUP), 2),
    "zero 2": Row("mlp", 3, ("--zero", "2", "--allreduce", "ring", *BACKUP), 2),
    "zero 3": Row("mlp", 3, ("--zero", "3", "--allreduce", "ring", *BACKUP), 2),
    "pp": Row("mlp", 2, ("--pp", "2", *HALVED, *BACKUP)),
    "tp": Row("mlp", 2, ("--tp", "2", *BACKUP)),
    "reproducible": Row("reproducible", 4, ()),
    "16 bits": Row("16 bits", 3, ()),
    "dp x cp": Row("gpt", 4, ("--dp", "2", "--cp", "2")),
    "gpt": Row("gpt", 4, ()),
    "gpt dp x pp": Row("gpt", 4, ("--dp", "2", "--pp", "2", *HALVED), 3),
    "experts": Row("experts", 4, ("--dp", "2", "--tp", "2"), 3),
}


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    name = str(rng.choice(list(ROWS)))
    row = ROWS[name]
    wanted = alone(row.model)
    count = int(rng.integers(1, row.ranks))
    victims = rng.choice(row.ranks, count, replace=False).tolist()
    seconds = rng.uniform(0, 1.2 * wanted.seconds + 1, count)
    if rng.random() < 0.3:  # at once, as where a host dies
        seconds[:] = seconds[0]
    kills = {rank: round(when, 3) for rank, when in zip(victims, seconds.tolist(), strict=True)}
    found, outcome = killed(row, kills, folder)
    return outcome._replace(what=f"{name}, killed {kills}, {found}: {outcome.what}")


class Alone(NamedTuple):
    """The run that is compared with, on one rank: its epochs, its parameters, and its time."""

    epochs: list[dict[str, Any]]
    parameters: str
    seconds: float


@once
def alone(model: str) -> Alone:
    command = [sys.executable, "-m", "nnmpi.train", "--json", *MODELS[model]]
    began = time.monotonic()
    env = mpijob.environment({"PYTHONPATH": PATH})
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    events = [json.loads(line) for line in out.splitlines()]
    epochs = [one for one in events if one["event"] == "epoch"]
    return Alone(epochs, events[-1]["parameters_sha256"], time.monotonic() - began)


def killed(row: Row, kills: Mapping[int, float], folder: Path) -> tuple[str, Outcome]:
    """How many deaths were noticed, and the outcome of a run of which these ranks are killed."""
    # other jobs leave files of their own in SHARED_MEMORY at the same time
    with TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as memory:
        return _killed(row, kills, folder, Path(memory))


def _killed(
    row: Row, kills: Mapping[int, float], folder: Path, memory: Path
) -> tuple[str, Outcome]:
    log, mark = folder / "log", uuid4().hex
    env = {"NNMPI_TEST_MARK": mark, "NNMPI_TIMEOUT": "60", "PYTHONPATH": PATH}
    env |= dict.fromkeys(BACKING, str(memory))
    ended = mpijob.run(
        *(row.ranks, Path(__file__).with_name("killed_ranks.py")),
        *(",".join(f"{rank}:{when}" for rank, when in kills.items()), folder),
        *("--json", "--log", log, *MODELS[row.model], *row.options),
        timeout=LIMIT,
        env=env,
        fault_tolerant=True,
    )
    dead = {int(path.name.removeprefix("killed-")): path for path in folder.glob("killed-*")}
    text = f"status {ended.status}; {ended.err[-3000:]}"
    left = left_behind(mark)
    if ended.status is None or left:
        return "", Outcome(Fault.HUNG, f"{text}; left: {left}")
    if files := _memory_left(memory):
        return "", Outcome(Fault.LOST, f"left in {memory}: {files}; {text}")
    is_too_few = row.ranks - len(dead) < row.needs or ONLY_SPARE in ended.err
    if ended.status == 1 and NOTHING_LEFT in ended.err and is_too_few:
        return f"{len(dead)} dead, nothing left", GOOD
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    noticed = {rank for one in events if one["event"] == "recovered" for rank in one["lost"]}
    over = log.stat().st_mtime - LATE if events else 0.0
    missing = {rank for rank in {*dead} - noticed if dead[rank].stat().st_mtime < over}
    problem = _difference(events, alone(row.model), row.model)
    if ended.status != 0:
        problem = "it failed"
    elif noticed - {*dead} or missing:
        problem = f"dead {[*dead]}, noticed {[*noticed]}"
    text += f"; {events[1:]}"
    said = f"{len(dead)} dead, {len(noticed)} noticed"
    return said, Outcome(Fault.WRONG, f"{problem}; {text}") if problem else GOOD


def _difference(events: list[dict[str, Any]], wanted: Alone, model: str) -> str:
    """What is another in a log than in the run on one rank."""
    kinds = [one["event"] for one in events if one["event"] not in SILENT]
    epochs = [one for one in events if one["event"] == "epoch"]
    if kinds != ["start", *["epoch"] * len(wanted.epochs), "done"]:
        return f"events {kinds}"
    if model == "reproducible" and events[-1].get("parameters_sha256", "") != wanted.parameters:
        return "other parameters"
    bound = {"reproducible": 0.0, "16 bits": 0.05}.get(model, 1e-6)
    for ours, theirs in zip(epochs, wanted.epochs, strict=True):
        for what in ("epoch", "steps", "skipped_steps"):
            if ours[what] != theirs[what]:
                return f"{what} {ours[what]}, not {theirs[what]}"
        for what in ("loss", "test_loss"):
            if not isclose(ours[what], theirs[what], rel_tol=bound):
                return f"{what} {ours[what]}, not {theirs[what]}, in epoch {ours['epoch']}"
    return ""


def _memory_left(memory: Path) -> list[str]:
    """Files of shared memory that the job's processes have left."""
    end = time.monotonic() + 2
    while (found := os.listdir(memory)) and time.monotonic() < end:
        time.sleep(0.2)
    return found
