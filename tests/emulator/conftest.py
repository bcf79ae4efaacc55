"""Each test on the emulated device leaves its options and problems as they were."""

from collections.abc import Iterator

import pytest

from emulator import build, machine
from emulator.captured import ADD
from emulator.direct import Kernels


@pytest.fixture(scope="module")
def compiler() -> None:
    """For tests on the device, which are skipped where it cannot be built."""
    if reason := build.missing():
        pytest.skip(reason)


@pytest.fixture
def as_it_was(compiler: None) -> Iterator[None]:
    yield
    machine.problems()
    machine.set_options(machine.of_environment())


@pytest.fixture(scope="module")
def kernels(compiler: None) -> Kernels:
    return Kernels(ADD)
