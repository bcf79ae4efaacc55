"""The laws of communicators over MPI; test_mpi_jobs.py starts the ranks."""

from collections.abc import Callable
from typing import Any

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


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["mine", "total", "array"])
def test_memory_that_arrays_view_is_not_freed(name: str) -> None:
    comm = world()
    memory: Any = comm.node_memory(8, "float32") if name == "array" else comm.shared(8, "float32")
    kept = getattr(memory, name)[3:] if comm.rank == 1 else None
    with pytest.raises(BufferError, match=rf"is not freed: on 1 of {comm.size} ranks arrays still"):
        memory.free()
    if kept is not None:
        kept[...] = 3.0  # it is there
    with pytest.raises(RuntimeError, match="was freed, and cannot be used any more"):
        memory.free()


@pytest.mark.mpi(min_size=2)
def test_memory_is_freed_when_its_arrays_are_gone() -> None:
    buffer, memory = world().shared(8, "float32"), world().node_memory(8, "float32")
    circle: list[Any] = [buffer.mine[3:], buffer.total, memory.array]  # which only gc finds
    circle.append(circle)
    buffer.start(2, 5).wait()
    buffer.all_reduce()
    del circle
    buffer.free()
    memory.free()
