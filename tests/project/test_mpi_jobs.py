"""Runs the tests that are marked for MPI, as jobs of 1, 2, 3, 4 and 8 ranks.

By hand: mpirun -n 4 python -m pytest --only-mpi tests/comm/test_comm_mpi.py
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from helpers.comm import laws
from helpers.mpijob import ROOT, run
from helpers.tensor import laws_summa, laws_tensor
from helpers.training import (
    conformance,
    laws_pipeline_cuts,
    laws_pipelines,
    laws_resume,
    laws_snapshot,
    laws_spatial,
    laws_training,
    laws_zero,
    laws_zero_reads,
)


def names(laws: Iterable[Callable[..., None]]) -> list[str]:
    return [f"test_law[{law.__name__}]" for law in laws]


MARKED = {
    "tests/comm/test_comm_mpi.py": names(laws.LAWS),
    "tests/parallel/test_training_mpi.py": names(laws_training.LAWS),
    "tests/parallel/pipeline/test_pipelines_mpi.py": names(
        [*laws_pipelines.LAWS, *laws_pipeline_cuts.LAWS]
    ),
    "tests/parallel/model/test_optimizer_state_mpi.py": names(laws_resume.LAWS),
    "tests/run/test_snapshot_mpi.py": names(laws_snapshot.LAWS),
    "tests/parallel/spatial/test_spatial_mpi.py": names(laws_spatial.LAWS),
    "tests/parallel/tensor/test_summa_mpi.py": names(laws_summa.LAWS),
    "tests/parallel/zero/test_zero_mpi.py": names([*laws_zero.LAWS, *laws_zero_reads.LAWS]),
    "tests/parallel/tensor/test_tensor_mpi.py": names(laws_tensor.LAWS),
    "tests/parallel/test_conformance_mpi.py": [f"test_family[{f}]" for f in conformance.FAMILIES],
}
"""The tests of each file, all of which have to pass on every rank."""

OF_EACH_MPI = [
    f"tests/{name}_mpi.py"
    for name in ("comm/test_comm", "parallel/test_training", "parallel/test_conformance")
]
"""What runs on another MPI too: all that is sent, and a step of every strategy."""

SECONDS = 400  # for a job of 8 ranks on 2 cores that others use too
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--color=no", "--only-mpi")
MPICH = os.environ.get("NNMPI_TEST_MPICH", "")  # the Python of an environment with MPICH


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("marked", MARKED)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_over_the_mpi_of_this_environment(ranks: int, marked: str) -> None:
    passes(ranks, marked)


@pytest.mark.skipif(not MPICH, reason="NNMPI_TEST_MPICH names no Python with MPICH")
@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("marked", OF_EACH_MPI)
@pytest.mark.parametrize("ranks", [2, 3])
def test_over_mpich(ranks: int, marked: str) -> None:
    passes(ranks, marked, python=MPICH)


def test_a_test_that_fails_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    """Else the other ranks would wait for it in their next collective."""
    (tmp_path / "test_one.py").write_text(ONE_FAILS)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    ended = run(3, *PYTEST, "-p", "helpers.ends_job", str(tmp_path), env={"PYTHONPATH": path})
    assert ended.status not in (0, None), ended
    assert "this rank is 1" in ended.err


ONE_FAILS = """
import numpy as np
import pytest
from nnmpi.comm import world

@pytest.mark.mpi
def test_one_rank_fails():
    assert world().rank != 1, f"this rank is {world().rank}"

@pytest.mark.mpi
def test_next():
    world().all_reduce(np.ones(3), "ring")
"""


def passes(ranks: int, marked: str, python: str = sys.executable) -> None:
    """Every rank passes every test, none is left out but those for more ranks."""
    ended = run(ranks, *PYTEST, "-rA", str(ROOT / marked), timeout=SECONDS, python=python)
    assert ended.status == 0, f"{ended.out[-3000:]}\n{ended.err[-3000:]}"
    for test in MARKED[marked]:
        assert ended.out.count(f"PASSED {marked}::{test}") == ranks
