"""Every graph of the tests and of the models, planned by the real cuDNN, without a GPU."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - adds bfloat16 to NumPy
import pytest
from helpers.device import DEVICE, needs_emulator
from helpers.kernels import fakecudnn, plans
from test_cudnn import CASES, computed

import nnmpi
from nnmpi.addons.cuda import cudnn, sdpa
from nnmpi.nn import models

PACKAGES = (
    *("nvidia-cudnn-cu13", "nvidia-cudnn-frontend"),
    *("nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"),
)
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
CNNS = {"digits_cnn": (1, 8, 8), "mnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32)}
BATCH = 64
KINDS = ("float32", False), ("float32", True), ("float16", False), ("bfloat16", False)
GPTS = (16, 128, 4, 32), (8, 256, 6, 64), (8, 1024, 12, 64), (1, 64, 2, 128)
"""Samples, positions, heads and their sizes."""

pytestmark = [needs_emulator, pytest.mark.long, pytest.mark.timeout(1200)]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked for from now on."""
    found = dict[Any, None]()
    built = cudnn.build

    def record(what: Any, **device: Any) -> cudnn.CudnnGraph:
        found[what] = None
        return built(what, **device)

    monkeypatch.setattr(cudnn, "build", record)
    return found  # type: ignore[return-value]


def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those of the tests, and of a step of each model, in all types."""
    with fakecudnn.install(monkeypatch):
        found = recorded(monkeypatch)
        for case in CASES.values():
            computed(case, "auto")
        for name, shape in CNNS.items():
            model = getattr(models, name)().to("float32", DEVICE)
            x = DEVICE.xp.ones((2, *shape), "float32")
            model(nnmpi.tensor(x, on=DEVICE)).sum().backward()
    whole = []
    for what in found:
        spec = what.spec
        if spec.x[0] == 2:
            spec = spec._replace(x=(BATCH, *spec.x[1:]), y=(BATCH, *spec.y[1:]))
        kinds = (spec._replace(dtype=dtype, tf32=tf32) for dtype, tf32 in KINDS)
        whole += [what._replace(spec=kind) for kind in kinds]
    return whole


def attention(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """That of several GPTs, and with fewer heads of keys than of queries; forwards and back."""
    found: list[Any] = []
    monkeypatch.setattr(cudnn, "library", lambda: True)
    monkeypatch.setattr(cudnn, "can", lambda what, xp: found.append(what))
    xp = DEVICE.xp

    def ask(q: Any, k: Any, v: Any, y: Any, causal: bool) -> None:
        lse = xp.empty(q.shape[:-1], "float32")
        sdpa.attention(q, k, v, 0.125, causal, y, lse)
        sdpa.gradients((q, k, v, y, lse), 0.125, causal, (y, q, k, v))

    for dtype in ("float16", "bfloat16"):
        for N, T, H, D in GPTS:
            qkv = xp.empty((N, T, H, 3, D), dtype)
            q, k, v = (qkv[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
            y = xp.empty((N, T, H, D), dtype).transpose(0, 2, 1, 3)
            ask(q[:, :, None], k, v, y[:, :, None], True)
        q, k = xp.empty((2, 2, 4, 96, 64), dtype), xp.empty((2, 2, 48, 64), dtype)
        for causal in (False, True):
            ask(q, k, k.copy(), q.copy(), causal)
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with cuDNN, its front end, CUDA's runtime, and a driver without a device."""
    if COMPILER is None:
        pytest.skip("no C compiler to make what stands for the driver")
    folder = tmp_path_factory.mktemp("cudnn")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    made = subprocess.run([*pip, *PACKAGES], capture_output=True, text=True, check=False)
    if made.returncode:
        last = made.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"pip cannot install {', '.join(PACKAGES)}: {last}")
    plans.driver(folder, COMPILER)
    yield folder
    shutil.rmtree(folder)


def planned(folder: Path, gpu: str, graphs: list[Any]) -> list[dict[str, Any]]:
    root = Path(nnmpi.__file__).parents[1]
    runtime = next(folder.glob("nvidia/**/libcudart.so.*"))
    libraries = folder, folder / "nvidia/cudnn/lib", runtime.parent
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests", folder))),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "CUDNN_FRONTEND_CUDART_LIB_NAME": str(runtime),
    }
    command = [sys.executable, "-m", "helpers.kernels.plans", gpu]
    run = subprocess.run(
        command, input=pickle.dumps(graphs), capture_output=True, check=False, env=env
    )
    assert run.returncode == 0, run.stderr.decode()
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("gpu", plans.GPUS)
@pytest.mark.parametrize("family", [convolutions, attention])
def test_cudnn_has_an_engine(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, family: Any, gpu: str
) -> None:
    graphs = family(monkeypatch)
    assert graphs
    found = planned(wheels, gpu, graphs)
    lacking = [
        (what, plan["why"]) for what, plan in zip(graphs, found, strict=True) if "why" in plan
    ]
    assert not lacking
