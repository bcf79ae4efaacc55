"""The laws of communicators over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.comm import laws

from nnmpi.comm import Comm, world


@pytest.mark.mpi
@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None]) -> None:
    law(world())


@pytest.mark.mpi
def test_the_world_is_made_once() -> None:
    assert world() is world()


@pytest.mark.mpi(min_size=2)
def test_the_memory_of_a_node_is_one() -> None:
    """Every rank of the machine sees what rank 0 writes into the common result."""
    buffer = world().shared(8, "float32")
    world().barrier()
    if world().rank == 0:
        buffer.total[:] = 7
    world().barrier()
    np.testing.assert_array_equal(buffer.total, 7)
    buffer.free()
