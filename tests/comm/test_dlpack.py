"""Arrays of other libraries, whose memory is shared through DLPack."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
import nnmpi.distributed as dist
from nnmpi.comm import Comm, comm_self, thread_ranks


class Other:
    """An array of a library that nnmpi does not know."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.memory, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def library(name: str) -> Callable[[np.ndarray], Any]:
    return Other if name == "another" else pytorch().from_numpy


LIBRARIES = ["another", pytest.param("torch", marks=needs_torch)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_collectives_write_to_their_memory(name: str) -> None:
    make = library(name)

    def law(comm: Comm) -> None:
        x = np.full((2, 6), comm.rank + 1.0)
        comm.all_reduce(make(x), "ring")
        assert (x == 6).all()
        comm.start(make(x[:, ::2]), "tree").wait()  # with gaps
        assert x[0].tolist() == [18, 6] * 3
        y = np.array([float(comm.rank)])
        comm.broadcast(make(y), 2)
        assert y == 2
        z = np.zeros(3)
        z[comm.rank] = comm.rank
        comm.all_gather(make(z))
        assert z.tolist() == [0, 1, 2]
        assert comm.reduce_scatter(make(np.ones(3))).tolist() == [3]
        work = comm.isend(make(z), (comm.rank + 1) % 3)
        got = np.zeros(3)
        comm.irecv(make(got), (comm.rank - 1) % 3).wait()
        work.wait()
        assert got.tolist() == z.tolist()

    thread_ranks.run(3, law)


@pytest.mark.parametrize("name", LIBRARIES)
def test_tensors_share_memory(name: str) -> None:
    x = np.arange(6.0)
    t = nnmpi.from_dlpack(library(name)(x))
    t[0] = 7.0
    assert x[0] == 7
    dist.init_process_group(comm=comm_self())
    dist.all_reduce(library(name)(x))
    dist.destroy_process_group()
    if name == "torch":
        shared = pytorch().from_dlpack(t)
        shared[1] = 8.0
        assert x[1] == 8
        assert nnmpi.tensor(shared).numpy().tolist() == x.tolist()


def test_what_cannot_be_shared_is_refused() -> None:
    comm, x = comm_self(), np.ones(3)
    frozen = np.ones(3)
    frozen.flags.writeable = False
    for kind, match, array in (
        (TypeError, "takes a NumPy array, not list$", [1.0]),
        (TypeError, "takes a NumPy array, not Other: .*device type 8, which neither", Other(x, 8)),
        (ValueError, "read-only: pass a copy", Other(frozen)),
    ):
        with pytest.raises(kind, match=match):
            comm.all_reduce(array)
    with pytest.raises(TypeError, match="float is no array"):
        nnmpi.from_dlpack(1.0)
    with pytest.raises(BufferError, match=r"share t\.detach\(\)"):
        np.from_dlpack(nnmpi.tensor(x, requires_grad=True))
    assert np.shares_memory(np.from_dlpack(nnmpi.from_numpy(x)), x)


@needs_torch
def test_a_tensor_of_pytorch_with_a_gradient_is_refused() -> None:
    t = pytorch().ones(3, requires_grad=True)
    with pytest.raises(TypeError, match=r"cannot be shared .*gradient"):
        comm_self().all_reduce(t)
