"""Training of several ranks on the device of the tests, beside one rank on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from helpers.device import DEVICE

from nnmpi import Config
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.comm import Comm
from nnmpi.run import training
from nnmpi.run.setup.setup import Setup, set_up


def _get(device: str) -> Backend:
    return CPU if device == "cpu" else DEVICE


def _set_up(config: Config, comm: Comm, *others: Any) -> Setup:
    device = "cuda" if comm.size > 1 else "cpu"
    return set_up(replace(config, device=device), comm, *others)


@contextmanager
def on_device() -> Iterator[None]:
    """Within it, Trainers of several ranks have --device cuda, which is the device of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "get", _get)
        patch.setattr(training, "set_up", _set_up)
        yield
