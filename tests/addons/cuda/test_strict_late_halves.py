"""Training in 16 bits on a device whose host reads outcomes one step late: no wait in a step, the
host's numbers."""

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.arrays import backend
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
    for _ in range(2):  # the first step allocates, the second is compared with that of its graphs
        losses.append(next(there).loss)
    with waits(0):  # the last one of an epoch waits
        losses.append(next(there).loss)
    here = [result.loss for result in steps("cpu", dtype, monkeypatch)]
    np.testing.assert_allclose(losses, here[:3], rtol=bound)
