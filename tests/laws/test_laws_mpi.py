"""The table of laws over MPI; test_mpi_jobs.py starts the ranks.

By hand: mpirun -n 2 python -m pytest --only-mpi tests/laws/test_laws_mpi.py -k "zero:"
"""

import os

import pytest
from helpers.laws import Law, table

from nnmpi import seeded
from nnmpi.comm import launched, world

COLUMN = os.environ.get("NNMPI_TEST_LAWS", "mpi")
LAWS = [pytest.param(law, id=name) for name, law, _ in table(COLUMN, launched())]


@pytest.mark.mpi
@pytest.mark.parametrize("law", LAWS)
def test_law(law: Law) -> None:
    """Each law draws weights as in a new process, whatever ranks have made of their own before."""
    with seeded(0):
        law(world())
