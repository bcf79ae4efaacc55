"""The laws of pipelines over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable

import pytest
from helpers.training import laws_pipeline_cuts, laws_pipelines

from nnmpi.comm import Comm, world


@pytest.mark.mpi
@pytest.mark.parametrize(
    "law", [*laws_pipelines.LAWS, *laws_pipeline_cuts.LAWS], ids=lambda law: law.__name__
)
def test_law(law: Callable[[Comm], None]) -> None:
    law(world())
