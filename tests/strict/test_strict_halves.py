"""Training in 16 bits where every array is a device's: no wait in a step, the host's numbers."""

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits
from helpers.training.pipelined import digits

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.arrays.dtypes import HALVES, named
from nnmpi.comm import comm_self
from nnmpi.parallel.step.executor import StepResult, StepState

pytestmark = needs_device


def build() -> nn.Sequential:
    """Layers whose statistics and sums are float32 in the middle of 16 bits."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(3)),
        *(nn.Flatten(), nn.LayerNorm(72), nn.Linear(72, 32), nn.Tanh(), nn.Linear(32, 10)),
    )


def steps(device: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepResult]:
    with monkeypatch.context() as patched:
        by_name = {"cpu": backend.CPU, "cuda": DEVICE}
        patched.setattr(backend, "get", lambda device: by_name.get(device, device))
        config = Config(dtype=dtype, device=device, epochs=1, batch_size=24, clip_norm=1.0)
        trainer = Trainer(config, build, digits(), comm_self())
    trainer.model.train()
    yield from trainer.strategy.steps(trainer.train, StepState())
    for p in trainer.model.parameters():
        assert p.data.dtype.name == dtype
        assert type(p.array) is backend.get("cpu").xp.ndarray or device == "cuda"
    trainer.close()


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_a_step_does_not_wait(dtype: str, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    there, losses = steps("cuda", dtype, monkeypatch), []
    losses.append(next(there).loss)  # the first step allocates, and knows what it is asked for
    for _ in range(2):  # the last one of an epoch waits
        with waits(0):
            losses.append(next(there).loss)
    here = [result.loss for result in steps("cpu", dtype, monkeypatch)]
    np.testing.assert_allclose(losses, here[:3], rtol=bound)


@pytest.mark.parametrize("on", [CPU, DEVICE], ids=["host", "device"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("order", [2.0, 3.0])
def test_a_norm_to_clip_by_has_the_digits_of_float32(on: Backend, dtype: str, order: float) -> None:
    model = nn.Linear(1000, 1, bias=False).to(named(dtype), on)
    (p,) = model.parameters()
    p.grad = on.asarray(np.full((1, 1000), 10, named(dtype)))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, order)
    np.testing.assert_allclose(backend.to_host(norm), 10 * 1000 ** (1 / order), rtol=1e-6)
    clipped = backend.to_host(p.grad_array).astype("float64")
    np.testing.assert_allclose(clipped, 1000 ** (-1 / order), rtol=2**-8)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_of_a_row_and_a_column_is_summed_in_float32(dtype: str) -> None:
    rng, layer = np.random.default_rng(0), nn.Linear(4096, 1, bias=False).to(named(dtype), DEVICE)
    x, w = (rng.standard_normal((1, 4096)).astype(named(dtype)) for _ in range(2))
    x[0, -1], w[0, -1] = 1, -(x[0, :-1].astype("d") @ w[0, :-1].astype("d"))  # they nearly cancel
    layer.weight.data[...] = DEVICE.asarray(w)
    y = backend.to_host(layer(nnmpi.tensor(x, on=DEVICE)).array).astype("d")
    exact = x.astype("d") @ w.T.astype("d")
    assert abs(y - exact) <= 2**-8 * abs(exact) + 1e-4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", HALVES)
def test_losses_are_summed_in_float32(dtype: str) -> None:
    scores = nnmpi.tensor(np.full((3000, 2), -30, named(dtype)), on=DEVICE)
    labels = DEVICE.asarray(np.zeros(3000, "int64"))
    assert float(nn.NLLLoss()(scores, labels).numpy()) == 30
