"""Ranks that are processes under mpirun, with an emulated device each."""

import json
from pathlib import Path

import pytest
from helpers.mpijob import run

from emulator import load, machine
from emulator.__main__ import environment
from emulator.ranks import sample

pytestmark = pytest.mark.skipif(bool(load.missing()), reason=load.missing() or "none")

HERE = Path(__file__).parent
KILLED = HERE.parent / "helpers" / "killedtraining.py"
IRIS = ("--model", "iris-mlp", "--data", "iris", "--json", "--device", "cuda", "--epochs", "5")


@pytest.fixture(autouse=True, scope="module")
def _driver() -> None:
    """It is built before ranks need it."""
    machine.library()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_layouts_train_over_nccl_as_one_rank_on_the_cpu(ranks: int) -> None:
    ended = run(ranks, HERE / "ranks.py", env=environment(), timeout=280)
    assert (ended.status, ended.out, ended.err) == (
        0,
        f"{len(sample(ranks))} layouts\n",
        "",
    )


def test_a_job_over_nccl_ends_with_a_rank_that_is_killed() -> None:
    ended = run(2, KILLED, "1", *IRIS, env=environment(), timeout=150)
    assert ended.status not in (0, None)
    events = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert events[0]["allreduce"] == "nccl"
    assert [e["epoch"] for e in events if e["event"] == "epoch"] in ([1], [1, 2])


LOST_IN_A_GRAPH = """
import os, sys
from nnmpi import train
from nnmpi.addons.cuda.graphs import Graphs
whole = Graphs._whole

def agreed(*given):
    found = whole(*given)
    if found and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        print("lost", flush=True)
        os.kill(os.getpid(), 9)
    return found

Graphs._whole = agreed
sys.exit(train.command(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_job_ends_with_a_rank_that_is_lost_while_the_graph_of_another_waits_for_it() -> None:
    ended = run(2, "-c", LOST_IN_A_GRAPH, *IRIS, env=environment(), timeout=50)  # patience: 60
    assert ended.status not in (0, None)
    assert "lost" in ended.out


@pytest.mark.long
def test_ranks_with_devices_go_on_without_one_that_is_killed() -> None:
    ended = run(3, KILLED, "2", *IRIS, env=environment(), timeout=150, fault_tolerant=True)
    assert (ended.status, ended.err) == (0, "")
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert (events[0]["allreduce"], events[-1]["ranks"], events[-1]["epochs"]) == ("ring", 2, 5)
