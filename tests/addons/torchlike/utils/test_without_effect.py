"""Settings of PyTorch that are accepted and change nothing."""

import importlib
import warnings
from typing import Any

import pytest
from helpers.programs import printed

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is there, though the machine may have one, and the tests an emulated one."""
    monkeypatch.setattr(backend, "_why_no_cuda", lambda: "none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of processes that tests start


def test_what_is_off_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nnmpi.amp.GradScaler(enabled=False)
        nn.Linear(2, 2).to("cpu", non_blocking=False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore")
def test_autocast_for_a_gpu_changes_nothing_without_one() -> None:
    cuda_amp = importlib.import_module("nnmpi.cuda.amp")
    assert nnmpi.cuda.amp is cuda_amp  # type: ignore[attr-defined]
    for context in (nnmpi.autocast("cuda"), cuda_amp.autocast()):
        with context:
            assert (nnmpi.ones(2, 2) @ nnmpi.ones(2, 2)).dtype == "float32"
            assert not nnmpi.is_autocast_enabled()
    for scaler in (nnmpi.amp.GradScaler(), cuda_amp.GradScaler(init_scale=2.0)):
        assert (scaler.is_enabled(), scaler.get_scale()) == (False, 1.0)


NOTES = {
    'autocast("cuda") changes nothing': "nnmpi.autocast('cuda')",
    'GradScaler("cuda") changes nothing': "nnmpi.amp.GradScaler()",
    "autocast in float32 changes nothing": "nnmpi.autocast('cpu', 'float32')",
    "settings of nnmpi.backends change nothing": "nnmpi.backends.cudnn.benchmark = True",
    "memory_format change nothing": "nn.Linear(2, 2).to(memory_format=nnmpi.channels_last)",
    "non_blocking and": "nn.Linear(2, 2).to('cpu', non_blocking=True)",
}


@pytest.mark.usefixtures("no_gpu")
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
    assert backends.mps.is_available() is backends.mps.is_built() is False
    assert isinstance(backends.cudnn.is_available(), bool)


def test_functions_stay_as_they_are() -> None:
    jit: Any = nnmpi.jit

    def plus(x: int) -> int:
        return x + 1

    for decorator in (jit.ignore, jit.ignore(drop=True), jit.script, jit.unused, jit.export):
        assert decorator(plus) is plus
    assert jit.is_scripting() is jit.is_tracing() is False
    with pytest.raises(AttributeError, match=r"nnmpi\.jit has no 'trace': leave it out"):
        jit.trace(plus, 1)
    with pytest.raises(AttributeError, match=r"'save': write nnmpi\.save"):
        jit.save(plus, "x.pt")
