"""The parameter server over MPI: the command, and jobs in which a rank dies."""

import json
from pathlib import Path

import pytest
from helpers.mpijob import run
from helpers.runs import but_steps

LIMIT = 200.0  # seconds, far more than any of these jobs takes
COMMAND = ("-m", "nnmpi.train", "--json", "--data", "digits", "--model", "mlp:64-32-10")
SLOW = "--slow-rank", "1:3", "--jitter", "0.1:2"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--sync", "asp"), id="asp", marks=pytest.mark.long),
        pytest.param(
            ("--sync", "ssp", "--staleness", "2", "--servers", "2", *SLOW), id="ssp, a slow rank"
        ),
    ],
)
def test_the_command(options: tuple[str, ...]) -> None:
    ran = run(4, *COMMAND, "--epochs", "3", *options, timeout=LIMIT)
    assert ran.status == 0, ran.err
    start, *epochs, done = but_steps(map(json.loads, ran.out.splitlines()))
    assert len(epochs) == 3
    assert done["steps"] == start["steps"]
    assert done["accuracy"] > 0.7
    workers = 4 - start["servers"]
    assert done["layout"]["dp"] == workers
    pushes = {w: sum(counts.values()) for w, counts in done["staleness"].items()}
    assert sum(pushes.values()) == workers * done["steps"]


DIES = """
import os, signal, sys
import nnmpi
from nnmpi.comm import world
from nnmpi.optim import Optimizer
from nnmpi.parallel.step.executor import Executor

role, how = sys.argv[1:]
comm = world()

def die():
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("an error of this rank")

def after(times, f):
    def g(*args, **options):
        after.count += 1
        if after.count > times:
            die()
        return f(*args, **options)
    after.count = 0
    return g

if role == "worker" and comm.rank == 1:
    Executor.run = after(5, Executor.run)
if role == "server" and comm.rank == 3:
    Optimizer.step = after(5, Optimizer.step)

config = nnmpi.Config(data="digits", model="mlp:64-32-10", epochs=100000, sync="asp", servers=2)
nnmpi.Trainer(config, comm=comm).fit()
"""


@pytest.mark.parametrize(
    ("role", "how"),
    [
        pytest.param("worker", "killed", marks=pytest.mark.long),
        ("server", "raises"),
        pytest.param("worker", "raises", marks=pytest.mark.long),
        pytest.param("server", "killed", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_dies_ends_the_job(role: str, how: str, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    ran = run(4, script, role, how, timeout=LIMIT)
    assert ran.status not in (0, None)
    rank = 1 if role == "worker" else 3
    says = f"rank {rank} of 4: ValueError: an error of this rank" if how == "raises" else "signal 9"
    assert says in ran.err
