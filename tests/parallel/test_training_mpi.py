"""The laws of training over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable

import pytest
from helpers.training import laws_recurrent, laws_training

from nnmpi.comm import Comm, world

LAWS = [*laws_training.LAWS, *laws_recurrent.LAWS]


@pytest.mark.mpi
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None]) -> None:
    law(world())
