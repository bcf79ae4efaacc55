"""What holds where every rank is a process, and ranks share memory of their node."""

from typing import Any

import numpy as np
import pytest

from nnmpi.comm import Comm, launched, world


def the_world_is_made_once(comm: Comm) -> None:
    assert comm.size < launched() or world() is comm


def the_memory_of_a_node_is_one(comm: Comm) -> None:
    """Every rank of the machine sees what rank 0 writes into the common result."""
    buffer = comm.shared(8, "float32")
    comm.barrier()
    if comm.rank == 0:
        buffer.total[:] = 7
    comm.barrier()
    np.testing.assert_array_equal(buffer.total, 7)
    buffer.free()


def memory_that_arrays_view_is_not_freed(comm: Comm) -> None:
    for name in ("mine", "total", "array"):
        make = comm.node_memory if name == "array" else comm.shared
        memory: Any = make(8, "float32")
        kept = getattr(memory, name)[3:] if comm.rank == 1 else None
        with pytest.raises(BufferError, match=rf"on 1 of {comm.size} ranks arrays still"):
            memory.free()
        if kept is not None:
            kept[...] = 3.0  # it is there
        with pytest.raises(RuntimeError, match="was freed"):
            memory.free()


def memory_is_freed_when_its_arrays_are_gone(comm: Comm) -> None:
    buffer, memory = comm.shared(8, "float32"), comm.node_memory(8, "float32")
    circle: list[Any] = [buffer.mine[3:], buffer.total, memory.array]  # which only gc finds
    circle.append(circle)
    buffer.start(2, 5).wait()
    buffer.all_reduce()
    del circle
    buffer.free()
    memory.free()
