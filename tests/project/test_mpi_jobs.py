"""Runs the table of laws over MPI, a column in few jobs, since to start ranks takes as long as many
laws.

By hand: mpirun -n 4 python -m pytest --only-mpi tests/laws/over_mpi.py
NNMPI_CHAOS=7 python -m pytest --all -k chaos tests/project/test_mpi_jobs.py has another seed.
"""

import os
import sys

import pytest
from helpers.laws import jobs, table
from helpers.mpijob import MPICH, ROOT, run
from helpers.programs import printed

LAWS = "tests/laws/over_mpi.py"
SECONDS = 900  # for a job of 8 ranks on 2 cores that others use too
PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_mpi", "-p", "pytest_timeout")
PYTEST = ("-m", "pytest", *PLUGINS, "--color=no", "--only-mpi")
NEEDS_MPICH = pytest.mark.skipif(not MPICH, reason="NNMPI_TEST_MPICH names no Python with MPICH")


def of(column: str, *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(column, n, marks=marks, id=f"{column}, {n} ranks") for n in jobs(column)]


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize(
    ("column", "ranks"),
    [
        *of("mpi"),
        *of("mpi_all", pytest.mark.long),
        *of("mpich", NEEDS_MPICH),
        *of("chaos"),
        *of("chaos_all", pytest.mark.long),
        *of("chaos_mpich", NEEDS_MPICH, pytest.mark.long),
    ],
)
def test_laws_hold_over_mpi(column: str, ranks: int) -> None:
    """Every law of the column passes on every rank; in those of chaos, MPI is late."""
    python = MPICH if column.endswith("mpich") else sys.executable
    seed = int(os.environ.get("NNMPI_CHAOS", ranks))
    chaos = seed if column.startswith("chaos") else None
    env = {"NNMPI_TEST_LAWS": column, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    arguments = *PYTEST, "-rA", ROOT / LAWS
    ended = run(ranks, *arguments, timeout=SECONDS, python=python, env=env, chaos=chaos)
    assert ended.status == 0, f"seed {seed}\n{ended.out[-3000:]}\n{ended.err[-3000:]}"
    for name, _, size in table(column, ranks):
        assert ended.out.count(f"PASSED {LAWS}::test_law[{name} {size}]") == ranks, name


def test_processes_that_make_the_tables_start_no_mpi() -> None:
    """That takes as long as to import a third of all tests."""
    program = "import sys; sys.path.append(sys.argv[1]); import helpers.laws"
    assert printed(f"{program}; print('mpi4py.MPI' in sys.modules)", str(ROOT / "tests")) == "False"
