"""What nnmpi captures in CUDA graphs: calls of libraries, and launches of other graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device

from nnmpi.addons.cuda.capture import Capture
from nnmpi.addons.cuda.table import KERNELS

pytestmark = needs_device

RNG = np.random.default_rng(0)
HOST = RNG.standard_normal((6, 6)).astype("float32")


def product(x: Any, y: Any) -> Callable[[], object]:
    return partial(KERNELS.loops["products_loop"], x, x, y, False)


def all_reduce(x: Any, y: Any) -> Callable[[], object]:
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("NCCL is not installed")
    comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    places, kind = (x.data.ptr, y.data.ptr, x.size), (nccl.NCCL_FLOAT32, nccl.NCCL_SUM)
    stream = DEVICE.xp.cuda.get_current_stream
    return lambda: comm.allReduce(*places, *kind, stream().ptr)


def column_sums(x: Any, y: Any) -> Callable[[], object]:
    return partial(KERNELS.loops["column_sum_loop"], x, y[0])


CALLS = {"cuBLAS": product, "NCCL, one rank": all_reduce, "kernels": column_sums}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_a_graph_in_a_graph_gives_its_bits_for_later_numbers(name: str) -> None:
    xp, capture = DEVICE.xp, Capture(DEVICE)
    x, wanted = xp.asarray(HOST), xp.zeros((6, 6), "float32")
    call = CALLS[name](x, wanted)
    call()
    call_again = CALLS[name](x, y := xp.zeros_like(wanted))
    call_again()  # libraries set themselves up outside captures
    with capture.graph() as inner:
        call_again()
    with capture.graph() as outer:
        inner[0].launch()
        y *= 2
    for numbers in (HOST, HOST[::-1]):
        x[...] = xp.asarray(numbers)
        call()
        y[...] = 0
        outer[0].launch()
        assert y.get().tobytes() == (2 * wanted).get().tobytes()
        assert wanted.any()
    outer.clear(), inner.clear()  # before NCCL's communicator, whose end waits for theirs
