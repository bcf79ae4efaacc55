"""The table of conformance over MPI; test_mpi_jobs.py starts the ranks."""

import pytest
from helpers.training.conformance import FAMILIES, family_trains_as_one_rank

from nnmpi.comm import world


@pytest.mark.mpi
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    family_trains_as_one_rank(family, world())
