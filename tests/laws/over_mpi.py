"""The table of laws over MPI; test_mpi_jobs.py starts the ranks.

By hand: mpirun -n 4 python -m pytest --only-mpi tests/laws/over_mpi.py -k "zero:"
"""

import os
from collections.abc import Iterator

import pytest
from helpers.laws import Law, table

from nnmpi.comm import Comm, launched, world

COLUMN = os.environ.get("NNMPI_TEST_LAWS", "mpi")
SHARES_CORE = COLUMN == "mpi" and hasattr(os, "sched_setaffinity")
OF_MESSAGES = "test_law[comm: ", "test_law[processes: "
LAWS = [
    pytest.param(law, ranks, id=f"{name} {ranks}")
    for name, law, ranks in sorted(table(COLUMN, launched()), key=lambda row: -row[2])
]


@pytest.fixture(scope="module")
def comms() -> dict[int, Comm | None]:
    """By a number of ranks, a Comm of the first ranks of the job; None on the others.

    All are made at once: a rank without further laws then ends, and waits for no split of others.
    """
    comm = world()
    fewer = range(1, comm.size)
    return {n: comm.split(0 if comm.rank < n else None) for n in fewer} | {comm.size: comm}


@pytest.fixture(autouse=True)
def _one_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Laws of trained models have one core for all ranks: one that waits yields it to others, and
    would spin on a core of its own. Laws of messages and memory have all cores."""
    if not SHARES_CORE or request.node.name.startswith(OF_MESSAGES):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.mpi
@pytest.mark.parametrize(("law", "ranks"), LAWS)
def test_law(law: Law, ranks: int, comms: dict[int, Comm | None]) -> None:
    comm = comms[ranks]
    if comm is not None:
        law(comm)
