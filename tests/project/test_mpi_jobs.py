"""Runs the table of laws over MPI, in one job for each number of ranks.

By hand: mpirun -n 4 python -m pytest --only-mpi tests/laws/test_laws_mpi.py
"""

import os
import sys
from pathlib import Path

import pytest
from helpers.laws import table
from helpers.mpijob import MPICH, ROOT, run

LAWS = "tests/laws/test_laws_mpi.py"
SECONDS = 900  # for a job of 8 ranks on 2 cores that others use too
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--color=no", "--only-mpi")
NEEDS_MPICH = pytest.mark.skipif(not MPICH, reason="NNMPI_TEST_MPICH names no Python with MPICH")


def jobs(column: str, *marks: pytest.MarkDecorator) -> list[object]:
    ranks = sorted({size for _, _, size in table(column)})
    return [pytest.param(column, n, marks=marks, id=f"{column}, {n} ranks") for n in ranks]


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize(
    ("column", "ranks"),
    [
        *jobs("mpi"),
        *jobs("mpi_all", pytest.mark.long),
        *jobs("mpich", NEEDS_MPICH),
        *jobs("quick", pytest.mark.quick),
    ],
)
def test_laws_hold_over_mpi(column: str, ranks: int) -> None:
    """Every law of the column passes on every rank."""
    python = MPICH if column == "mpich" else sys.executable
    env = {"NNMPI_TEST_LAWS": column}
    ended = run(ranks, *PYTEST, "-rA", ROOT / LAWS, timeout=SECONDS, python=python, env=env)
    assert ended.status == 0, f"{ended.out[-3000:]}\n{ended.err[-3000:]}"
    for name, _, _ in table(column, ranks):
        assert ended.out.count(f"PASSED {LAWS}::test_law[{name}]") == ranks, name


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
