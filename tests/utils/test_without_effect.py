"""Settings of PyTorch that are accepted and change nothing."""

import importlib
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.programs import printed

import nnmpi
from nnmpi import nn, optim


def trained(with_amp: bool) -> np.ndarray:
    """A weight after steps as programs with mixed precision write them, or without it."""
    with nnmpi.seeded(0):
        layer = nn.Linear(3, 2)
    opt = optim.SGD(layer.parameters(), lr=0.1)
    x = np.ones((2, 3), "float32")
    if not with_amp:
        for _ in range(3):
            opt.zero_grad()
            layer(x).sum().backward()
            opt.step()
        return layer.weight.numpy().copy()
    scaler = nnmpi.amp.GradScaler("cpu")
    for _ in range(3):
        opt.zero_grad()
        with nnmpi.autocast("cpu", dtype="bfloat16"):
            loss = layer(x).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
    scaler.load_state_dict(scaler.state_dict())
    assert (scaler.get_scale(), scaler.is_enabled()) == (1.0, True)
    return layer.weight.numpy().copy()


@pytest.mark.filterwarnings("ignore")
def test_mixed_precision_changes_nothing() -> None:
    np.testing.assert_array_equal(trained(True), trained(False))
    decorated = nnmpi.autocast("cpu")(lambda: 3)
    assert decorated() == 3
    cuda_amp = importlib.import_module("nnmpi.cuda.amp")
    assert nnmpi.cuda.amp is cuda_amp  # type: ignore[attr-defined]
    assert not cuda_amp.autocast(False)._enabled
    assert not cuda_amp.GradScaler(enabled=False).is_enabled()


def test_what_is_off_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with nnmpi.amp.autocast("cpu", enabled=False):
            nnmpi.amp.GradScaler(enabled=False)
        nn.Linear(2, 2).to("cpu", non_blocking=False)


NOTES = {
    "autocast changes nothing": "nnmpi.autocast('cuda')",
    "GradScaler changes nothing": "nnmpi.amp.GradScaler()",
    "settings of nnmpi.backends change nothing": "nnmpi.backends.cudnn.benchmark = True",
    "memory_format change nothing": "nn.Linear(2, 2).to(memory_format=nnmpi.channels_last)",
    "non_blocking and": "nn.Linear(2, 2).to('cpu', non_blocking=True)",
}


@pytest.mark.parametrize("words", NOTES)
def test_it_is_said_once(words: str) -> None:
    program = (
        "import warnings, nnmpi; from nnmpi import nn\n"
        "warnings.showwarning = lambda message, *rest: print(message)\n"
        f"for i in range(3):\n    {NOTES[words]}\n    {NOTES[words]}"
    )
    assert printed(program).count(words) == 1


@pytest.mark.filterwarnings("ignore")
def test_settings_are_there() -> None:
    backends: Any = nnmpi.backends
    backends.cudnn.benchmark = True
    backends.cuda.matmul.allow_tf32 = True
    assert backends.cudnn.benchmark is backends.cuda.matmul.allow_tf32 is True
    assert not backends.mps.is_available()
    assert isinstance(backends.cudnn.is_available(), bool)
