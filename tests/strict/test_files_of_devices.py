"""A saved model goes from the CPU to a device and back."""

from pathlib import Path

import numpy as np
from helpers.device import DEVICE, needs_device

import nnmpi
from nnmpi import nn, optim
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend

pytestmark = needs_device


def trained(start: Path | None, on: Backend, steps: int, to: Path) -> nn.Module:
    """The model of a file, or a new one, after some steps; it is saved to another file."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4)),
        *(nn.Flatten(), nn.Linear(36, 10)),
    ).to("float32", on)
    if start is not None:
        model.load_state_dict(nnmpi.load(start))
    opt = optim.SGD(model.parameters(), lr=0.05)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 1, 8, 8)).astype("float32"), rng.integers(0, 10, 6)
    for _ in range(steps):
        loss = nn.CrossEntropyLoss()(model(nnmpi.tensor(x, on=on)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    nnmpi.save(model.state_dict(), to)
    return model


def test_a_file_is_the_same_after_a_way_over_the_device(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{n}.safetensors" for n in range(3))
    trained(None, CPU, 2, first)
    model = trained(first, DEVICE, 0, second)
    assert all(backend.of(p.array).xp is DEVICE.xp for p in model.parameters())
    trained(second, CPU, 0, third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()


def test_training_goes_on_where_the_file_was_written_elsewhere(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.safetensors" for n in range(4)]
    trained(None, CPU, 2, paths[0])
    trained(paths[0], DEVICE, 2, paths[1])
    trained(paths[1], CPU, 2, paths[2])
    trained(None, CPU, 6, paths[3])
    moved, stayed = nnmpi.load(paths[2]), nnmpi.load(paths[3])
    assert moved.keys() == stayed.keys()
    for name, values in stayed.items():
        np.testing.assert_allclose(moved[name], values, rtol=1e-4, atol=1e-6)
