"""Learning-rate schedules against PyTorch's, and what a specification may be."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

from nnmpi import Config, Trainer, nn
from nnmpi.optim import schedule
from nnmpi.run.end import DivergedError

NO_TORCH = "PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"
STEPS = 20


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason=NO_TORCH)


SCHEDULES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "constant": ("constant", "ConstantLR", {"factor": 1.0}),
    "step": ("step:4", "StepLR", {"step_size": 4}),
    "step, factor": ("step:3:0.5", "StepLR", {"step_size": 3, "gamma": 0.5}),
    "cosine": ("cosine", "CosineAnnealingLR", {"T_max": STEPS}),
    "warm-up": ("warmup:5+constant", "LinearLR", {"start_factor": 1 / 5, "total_iters": 4}),
}


@pytest.mark.parametrize("case", SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_are_pytorchs(case: Any, torch: Any) -> None:
    spec, name, options = case
    factor = schedule.parse(spec, STEPS)
    oracle = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    rates = getattr(torch.optim.lr_scheduler, name)(oracle, **options)
    for t in range(STEPS):
        assert 0.3 * factor(t) == pytest.approx(rates.get_last_lr()[0], rel=1e-12, abs=1e-15)
        oracle.step()
        rates.step()


def test_schedules_join_and_end() -> None:
    joined, cosine = schedule.parse("warmup:4+cosine", 14), schedule.cosine(10)
    assert [joined(t) for t in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [joined(4 + t) for t in range(12)] == [cosine(t) for t in range(12)]
    assert cosine(5) == pytest.approx(0.5)
    assert schedule.cosine(10, floor=0.1)(99) == pytest.approx(0.1)
    assert schedule.parse("warmup:3", 10)(50) == 1
    assert schedule.parse("warmup:9+cosine", 3)(10) == pytest.approx(0)


def test_a_rate_that_overflows_is_infinite() -> None:
    """So the run ends as any that diverges, and not by an error of arithmetic."""
    grows = schedule.parse("step:2:1e200", STEPS)
    assert [grows(t) for t in range(5)] == [1.0, 1.0, 1e200, 1e200, math.inf]
    shrinks = schedule.parse("step:1:1e-200", STEPS)
    assert [shrinks(t) for t in range(3)] == [1.0, 1e-200, 0.0]


def test_a_run_at_such_a_rate_ends_as_diverged() -> None:
    x = np.eye(8, dtype="float32")
    config = Config(lr_schedule="step:1:1e300", epochs=9, batch_size=8, quiet=True)
    trainer = Trainer(config, lambda: nn.Linear(8, 2), (x, np.arange(8) % 2, x, np.arange(8) % 2))
    with pytest.raises(DivergedError, match=r"learning rate 3e\+297; try another --lr-schedule"):
        trainer.fit()


BAD_SPECS = (
    "",
    "linear",
    "cosine:3",
    "step",
    "step:0",
    "step:-2",
    "step:2:nan",
    "step:2:inf",
    "step:2:1e400",
    "step:2:0",
    "step:2:-1",
    "step:2:0.5:1",
    "step:x",
    "constant+cosine",
    "warmup",
    "warmup:0",
    "warmup:5+",
    "warmup:5+linear",
    "+cosine",
    "warmup:5:6+cosine",
    "warmup:1+warmup:1+cosine",
)


@pytest.mark.parametrize("spec", BAD_SPECS)
def test_a_bad_schedule_gives_one_line(spec: str) -> None:
    with refused(repr(spec), "constant", "cosine", "step:EVERY[:FACTOR]", "warmup:STEPS"):
        schedule.parse(spec, 100)


def test_a_schedule_without_steps_is_refused() -> None:
    for make, n in ((schedule.step_decay, 0), (schedule.cosine, 0), (schedule.warm_up, -1)):
        with refused(f"={n}"):
            make(n)
