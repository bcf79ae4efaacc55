"""The device the engine's tests run on: the strict stand-in, or a GPU.

NNMPI_TEST_DEVICE=cuda, which scripts/gpu_check sets, puts CuPy in the place of
the stand-in. Waits are counted on the stand-in only.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import strictarray

from nnmpi import backend
from nnmpi.backend import Backend

IS_GPU = os.environ.get("NNMPI_TEST_DEVICE") == "cuda"
DEVICE = backend.get("cuda") if IS_GPU else Backend("cuda", strictarray)


@contextmanager
def waits(expected: list[str] | int) -> Iterator[None]:
    """The host waits for the device so often within, or for just these operations."""
    with strictarray.counting() as count:
        yield
    if not IS_GPU:
        assert (count.total if isinstance(expected, int) else count.names) == expected, count
