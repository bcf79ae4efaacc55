"""The parameter server over MPI: the command, and jobs in which a rank dies."""

import json
from pathlib import Path

import pytest
from mpijob import run

LIMIT = 60.0  # seconds, far more than any of these jobs takes
COMMAND = ("-m", "nnmpi.train", "--data", "digits", "--model", "mlp:64-32-10")


@pytest.mark.parametrize(
    "options",
    [
        ("--sync", "bsp", "--servers", "2"),
        ("--sync", "asp", "--slow-rank", "1:3", "--jitter", "0.1:2"),
        ("--sync", "ssp", "--staleness", "2", "--servers", "2"),
    ],
    ids=lambda options: options[1],
)
def test_the_command(options: tuple[str, ...]) -> None:
    told = run(4, *COMMAND, "--epochs", "3", *options, timeout=LIMIT)
    assert told.status == 0, told.err
    start, *epochs, done = map(json.loads, told.out.splitlines())
    assert start["exchange"] == "memory"
    assert len(epochs) == 3
    assert done["steps"] == start["steps"]
    assert done["accuracy"] > 0.7
    workers = 4 - start["servers"]
    assert done["layout"]["dp"] == workers
    pushes = {w: sum(counts.values()) for w, counts in done["staleness"].items()}
    assert sum(pushes.values()) == workers * done["steps"]


def test_divergence_is_told_once() -> None:
    told = run(3, *COMMAND, "--sync", "asp", "--optimizer", "sgd", "--lr", "1e30", timeout=LIMIT)
    assert told.status == 1
    assert told.err.count("nnmpi.train: the loss became") == 1


TRAINS = """
import sys
import nnmpi
from nnmpi.comm import world
from nnmpi.parallel.server import member
from nnmpi.parallel.server.transfer import ByMessage

comm = world()
if sys.argv[1] == "messages":
    member.carrier = ByMessage
config = nnmpi.Config(data="digits", epochs=2, sync=sys.argv[2], servers=2, steps=40)
trainer = nnmpi.Trainer(config, comm=comm)
assert trainer.describe()["exchange"] == sys.argv[1]
print(trainer.fit(nnmpi.report.Silence())["parameters_sha256"])
"""


def test_memory_and_messages_give_the_same_bits_on_all_ranks(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    by = [run(4, script, by, "bsp", timeout=LIMIT) for by in ("memory", "messages")]
    hashes = [line for told in by for line in told.out.splitlines()]
    assert len(hashes) == 8, by
    assert len(set(hashes)) == 1


def test_ranks_end_alike_after_messages_out_of_step(tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    told = run(4, script, "messages", "asp", timeout=LIMIT)
    assert told.status == 0, told.err
    assert len(told.out.splitlines()) == 4
    assert len(set(told.out.splitlines())) == 1


DIES = """
import os, signal, sys, threading
import numpy as np
import nnmpi
from nnmpi.comm import world
from nnmpi.nn.models import mlp
from nnmpi.parallel.server.transfer import ByMessage
from nnmpi.parallel.server import member, server
from nnmpi.parallel import executor

role, how, by = sys.argv[1:]
comm = world()
if by == "messages":
    member.carrier = ByMessage

def die():
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no more of this")

def after(times, f):
    def g(*args):
        after.count += 1
        if after.count > times:
            die()
        return f(*args)
    after.count = 0
    return g

if role == "worker" and comm.rank == 1:
    executor.Worker.run = after(5, executor.Worker.run)
if role == "server" and comm.rank == 3:
    server.SliceMover.step = after(5, server.SliceMover.step)

config = nnmpi.Config(data="digits", model="mlp:64-32-10", epochs=100000, sync="asp", servers=2)
trainer = nnmpi.Trainer(config, comm=comm)
assert trainer.describe()["exchange"] == by
trainer.fit()
"""


@pytest.mark.parametrize("by", ["memory", "messages"])
@pytest.mark.parametrize("how", ["killed", "raises"])
@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_rank_that_dies_ends_the_job(role: str, how: str, by: str, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    told = run(4, script, role, how, by, timeout=LIMIT)
    assert told.status not in (0, None)
    rank = 1 if role == "worker" else 3
    says = f"rank {rank} of 4: ValueError: no more of this" if how == "raises" else "signal 9"
    assert says in told.err
