"""The device of the tests: CuPy on the emulated driver, or on a GPU with NNMPI_TEST_DEVICE=cuda.

Tests that have the mark `needs_device` are skipped where CuPy cannot run (emulator/README.md).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from emulator import load, machine

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Backend


@contextmanager
def emulated(**changed: Any) -> Iterator[None]:
    """The emulated device has other options within."""
    machine.set_options(machine.of_environment()._replace(**changed))
    yield
    machine.set_options(machine.of_environment())


IS_EMULATED = os.environ.get("NNMPI_TEST_DEVICE", "emulated") == "emulated"
MISSING = load.missing() if IS_EMULATED else ""
if IS_EMULATED and not MISSING:
    os.environ.setdefault("NNMPI_EMULATOR", "devices=4")  # of which tests see as many as they want
    load.install()
DEVICE = Backend("cuda", None) if MISSING else backend.get("cuda")

needs_device = pytest.mark.skipif(bool(MISSING), reason=f"no device: {MISSING}")
needs_emulator = pytest.mark.skipif(
    bool(MISSING) or not IS_EMULATED, reason=f"no emulated device: {MISSING or 'a GPU is used'}"
)
ON_DEVICE = pytest.param(DEVICE, id="device", marks=needs_device)


@contextmanager
def device_count(n: int) -> Iterator[None]:
    """nnmpi sees so many devices within; CuPy keeps lists of all that there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DEVICE.xp.cuda.runtime, "getDeviceCount", lambda: n)
        yield


if IS_EMULATED and not MISSING:
    DEVICE.xp.cuda.runtime.getDeviceCount = lambda: 1


def moved(a: np.ndarray) -> Any:
    """The array on the device, in the same order of memory, which CuPy's asarray does not keep."""
    order = sorted(range(a.ndim), key=lambda axis: -a.strides[axis])
    back = [order.index(axis) for axis in range(a.ndim)]
    return DEVICE.asarray(a.transpose(order).copy()).transpose(back)


@contextmanager
def noted_calls() -> Iterator[list[tuple[str, str]]]:
    """The notes of the emulated device of what is called within; on a GPU there are none."""
    with machine.noting() if IS_EMULATED else nullcontext([]) as calls:
        yield calls


@contextmanager
def waits(expected: int) -> Iterator[None]:
    """The host waits so often within, which the emulated device counts."""
    with noted_calls() as calls:
        yield
    if IS_EMULATED:
        assert machine.waits(calls) == expected, calls
