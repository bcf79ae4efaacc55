"""A rank of a pipeline that raises, leaves or is killed ends the job, with its number."""

import os
from itertools import product
from typing import Any

import pytest
from helpers import faulty
from helpers.mpijob import ROOT, Ended, run
from helpers.training import pipelined

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport

LIMIT = 100.0  # seconds: far more than any of these jobs takes, and none of them is meant to hang
THREE = {"pp": 3, "cut": "3,5", "micro_batches": 4, "batch_size": 24, "epochs": 1}

COMMAND = "-m", "nnmpi.train", "--model", "helpers.faulty:build", "--data", "digits", "--quiet"


# ---- ranks that are threads


@pytest.mark.one_in(4)
@pytest.mark.parametrize("schedule", [*pipelined.SCHEDULES, "recompute", "pipedream"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("how", ["raises", "leaves"])
def test_a_thread_that_ends_ends_all(how: str, where: str, schedule: str) -> None:
    more: dict[str, Any] = {"schedule": schedule}
    if schedule == "recompute":
        more = {"recompute": True}
    has_two = schedule in ("interleaved", *pipelined.IN_V)
    if has_two:
        more |= {"pp": 2, "cut": "3,5,7"}

    if schedule == "pipedream":
        more |= {"micro_batches": 1}

    def rank(comm: Comm) -> None:
        config = Config(**{**THREE, **more})
        data = pipelined.digits()
        Trainer(config, lambda: faulty.model(f"{how} {where}"), data, comm).fit(NullReport())

    with pytest.raises(ValueError if how == "raises" else SystemExit, match=r"no more of this|0"):
        threads.run(2 if has_two else 3, rank)


# ---- jobs


def job(how: str, where: str) -> Ended:
    """The command on three ranks, of which rank 1 fails in its second step."""
    cut = ("--pp", "3", "--cut", "3,5", "--micro-batches", "4", "--steps", "5")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = {"PYTHONPATH": path, "NNMPI_TEST_FAULT": f"{how} {where}"}
    ended = run(3, *COMMAND, *cut, timeout=LIMIT, env=env)
    assert ended.status is not None, f"{how} {where} hangs\n{ended.err}"
    assert ended.status != 0
    assert ended.out == ""
    return ended


ENDS = [
    pytest.param(how, where, marks=() if (how, where) == ("leaves", "wait") else pytest.mark.long)
    for how, where in product(faulty.HOW, ("forward", "backward", "wait"))
]
"""Threads are tested above, and other ranks that raise or are killed in test_diagnostics_mpi.py."""


@pytest.mark.parametrize(("how", "where"), ENDS)
def test_a_rank_that_ends_ends_the_job_by_name(how: str, where: str) -> None:
    ended = job(how, where)
    if how == "raises":
        assert "rank 1: no more of this" in ended.err
    if how == "leaves":
        line = next(line for line in ended.err.splitlines() if "has left" in line)
        assert " waits for rank 1 in irecv of " in line
        assert "but rank 1 has left after " in line


@pytest.mark.long
def test_a_model_without_fault_ends_well() -> None:
    """So that the faults are what ends the jobs."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    cut = ("--pp", "3", "--cut", "3,5", "--micro-batches", "4", "--steps", "1")
    env = {"PYTHONPATH": path, "NNMPI_TEST_FAULT": "raises forward"}
    ended = run(3, *COMMAND, *cut, timeout=LIMIT, env=env)
    assert ended.status == 0, ended
