"""The table of laws over MPI; test_mpi_jobs.py starts the ranks.

By hand: mpirun -n 4 python -m pytest --only-mpi tests/laws/test_laws_mpi.py -k "zero:"
"""

import functools
import os

import pytest
from helpers.laws import Law, table

from nnmpi import seeded
from nnmpi.comm import Comm, launched, world

COLUMN = os.environ.get("NNMPI_TEST_LAWS", "mpi")
LAWS = [
    pytest.param(law, ranks, id=f"{name} {ranks}")
    for name, law, ranks in sorted(table(COLUMN, launched()), key=lambda row: -row[2])
]


@functools.cache
def first(ranks: int) -> Comm | None:
    """A Comm of the first ranks of the job, which all ranks make at once; None on the others."""
    return world() if ranks == launched() else world().split(0 if world().rank < ranks else None)


@pytest.mark.mpi
@pytest.mark.parametrize(("law", "ranks"), LAWS)
def test_law(law: Law, ranks: int) -> None:
    """Each law draws weights as in a new process, whatever ranks have made of their own before."""
    comm = first(ranks)
    if comm is not None:
        with seeded(0):
            law(comm)
