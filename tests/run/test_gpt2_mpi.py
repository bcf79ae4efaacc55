"""GPT-2's folders and generation over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable

import pytest
from helpers.training import laws_generation, laws_gpt2

from nnmpi.comm import Comm, world


@pytest.mark.mpi
@pytest.mark.parametrize(
    "law", [*laws_gpt2.LAWS, *laws_generation.LAWS], ids=lambda law: law.__name__
)
def test_law(law: Callable[[Comm], None]) -> None:
    law(world())
