"""Runs the tests that are marked for MPI, in jobs of 1, 2, 3, 4 and 8 ranks.

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
    laws_generation,
    laws_gpt2,
    laws_pipeline_cuts,
    laws_pipelines,
    laws_resume,
    laws_snapshot,
    laws_spatial,
    laws_training,
    laws_zero,
)


def names(laws: Iterable[Callable[..., None]]) -> list[str]:
    return [f"test_law[{law.__name__}]" for law in laws]


COMM = "tests/comm/test_comm_mpi.py"
TABLE = "tests/parallel/test_conformance_mpi.py"
DEVICE = "tests/strict/test_strict_conformance_mpi.py"
TRAINING = "tests/parallel/test_training_mpi.py"
ZERO = "tests/parallel/zero/test_zero_mpi.py"
RESUME = "tests/parallel/model/test_optimizer_state_mpi.py"
PIPELINES = "tests/parallel/pipeline/test_pipelines_mpi.py"
TENSOR = "tests/parallel/tensor/test_tensor_mpi.py"
SUMMA = "tests/parallel/tensor/test_summa_mpi.py"
SPATIAL = "tests/parallel/spatial/test_spatial_mpi.py"
SNAPSHOT = "tests/run/test_snapshot_mpi.py"
GPT2 = "tests/run/test_gpt2_mpi.py"

MARKED = {
    COMM: names(laws.LAWS),
    TABLE: [f"test_family[{family}]" for family in conformance.FAMILIES],
    DEVICE: [f"test_family[{family}]" for family in conformance.FAMILIES],
    TRAINING: names(laws_training.LAWS),
    ZERO: names(laws_zero.LAWS),
    RESUME: names(laws_resume.LAWS),
    PIPELINES: names([*laws_pipelines.LAWS, *laws_pipeline_cuts.LAWS]),
    TENSOR: names(laws_tensor.LAWS),
    SUMMA: names(laws_summa.LAWS),
    SPATIAL: names(laws_spatial.LAWS),
    SNAPSHOT: names(laws_snapshot.LAWS),
    GPT2: names([*laws_gpt2.LAWS, *laws_generation.LAWS]),
}
"""The tests of each file, all of which have to pass on every rank."""

JOBS = [
    *((ranks, [COMM]) for ranks in (1, 2, 3, 4)),
    *((ranks, [TABLE]) for ranks in conformance.RANKS_OVER_MPI),
    (2, [TRAINING, ZERO, RESUME, GPT2]),
    (3, [PIPELINES, TENSOR]),
    *((ranks, [DEVICE]) for ranks in (2, 4)),
    (3, [SUMMA, SPATIAL, SNAPSHOT]),
]
"""Ranks and files: Comm on any number of ranks, and a step of every strategy on a power of two.
On threads all laws hold on more numbers; here it counts that the ranks are processes."""

LONG_JOBS = [
    pytest.param(ranks, [file], marks=pytest.mark.long) for ranks, file in ((8, COMM), (3, DEVICE))
]
JOBS_OF_MPICH = [(2, [TABLE]), (3, [COMM])]

SECONDS = 600  # for a job of 8 ranks on 2 cores that others use too
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--color=no", "--only-mpi")
MPICH = os.environ.get("NNMPI_TEST_MPICH", "")  # the Python of an environment with MPICH


def label(part: object) -> str:
    """Of a number of ranks, or of files."""
    files = part if isinstance(part, list) else []
    return " ".join(Path(f).stem.removeprefix("test_") for f in files) or f"{part} ranks"


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize(("ranks", "files"), [*JOBS, *LONG_JOBS], ids=label)
def test_over_the_mpi_of_this_environment(ranks: int, files: list[str]) -> None:
    passes(ranks, files)


@pytest.mark.skipif(not MPICH, reason="NNMPI_TEST_MPICH names no Python with MPICH")
@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize(("ranks", "files"), JOBS_OF_MPICH, ids=label)
def test_over_mpich(ranks: int, files: list[str]) -> None:
    passes(ranks, files, python=MPICH)


def test_every_file_that_is_marked_is_in_a_job() -> None:
    found = {file for _, files in JOBS for file in files}
    assert found == {*MARKED}
    assert found == {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*_mpi.py")
        if "pytest.mark.mpi\n" in path.read_text()
    }


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


def passes(ranks: int, files: list[str], python: str = sys.executable) -> None:
    """Every rank passes every test, none is left out but those for more ranks."""
    paths = [ROOT / file for file in files]
    ended = run(ranks, *PYTEST, "-rA", *paths, timeout=SECONDS, python=python)
    assert ended.status == 0, f"{ended.out[-3000:]}\n{ended.err[-3000:]}"
    for file in files:
        for test in MARKED[file]:
            assert ended.out.count(f"PASSED {file}::{test}") == ranks, (file, test)
