"""Training that goes on in another layout, over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable

import pytest
from helpers.training import laws_resume

from nnmpi.comm import Comm, world


@pytest.mark.mpi
@pytest.mark.parametrize("law", laws_resume.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None]) -> None:
    law(world())
