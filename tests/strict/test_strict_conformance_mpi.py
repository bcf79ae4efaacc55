"""Rows of the table of conformance on a device, over MPI; test_mpi_jobs.py starts the ranks."""

import pytest
from helpers.training.conformance import FAMILIES, device_rows_over_mpi
from helpers.training.on_device import on_device

from nnmpi.comm import world


@pytest.mark.mpi
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    with on_device():
        for row in device_rows_over_mpi(family, world().size):
            row.trains_on_device(world())
