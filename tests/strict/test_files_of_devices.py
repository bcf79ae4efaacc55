"""A saved model goes from the CPU to a device and back."""

from pathlib import Path

import numpy as np
from helpers.device import DEVICE, needs_device

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend

pytestmark = needs_device


def saved(start: Path | None, on: Backend, to: Path) -> nn.Module:
    """The model of a file, or a new one with statistics; it is saved to another file."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4)),
        *(nn.Flatten(), nn.Linear(36, 10)),
    ).to("float32", on)
    if start is None:
        images = np.random.default_rng(0).standard_normal((6, 1, 8, 8)).astype("float32")
        model(nnmpi.tensor(images))  # which tracks statistics
    else:
        model.load_state_dict(nnmpi.load(start))
    nnmpi.save(model.state_dict(), to)
    return model


def test_a_file_is_the_same_after_a_way_over_the_device(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{n}.safetensors" for n in range(3))
    saved(None, CPU, first)
    model = saved(first, DEVICE, second)
    assert all(backend.of(p.array).xp is DEVICE.xp for p in model.parameters())
    saved(second, CPU, third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
