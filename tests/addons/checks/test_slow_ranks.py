"""Slow ranks: what is written, what is refused, and how long they sleep."""

import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.training.served import Noted, clouds, fit

from nnmpi import Config, nn
from nnmpi.addons.checks import slow_ranks
from nnmpi.addons.checks.slow_ranks import delay_of
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output.messages import EVENT_FIELDS
from nnmpi.nn.models import mlp
from nnmpi.schedules.delay import Delay


def delay(
    slow: str | None = None, jitter: str | None = None, rank: int = 0, seed: int = 0
) -> Delay:
    return delay_of(Config(slow_rank=slow, jitter=jitter, seed=seed), rank, 3)


def test_each_rank_has_the_factor_that_is_named() -> None:
    assert [delay("2:3,0:1.5", rank=r).factor(7) for r in range(3)] == [1.5, 1.0, 3.0]


REFUSED = tomllib.loads(Path(__file__).with_name("delays.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("says", REFUSED)
def test_delays_that_cannot_be(says: str) -> None:
    option = "slow" if says.startswith("slow_rank") else "jitter"
    with pytest.raises(ValueError, match=f"^{says}"):
        delay(**{option: REFUSED[says]})


@pytest.mark.parametrize("options", [{"slow_rank": "1:3"}, {"jitter": "0.1:5"}])
def test_the_start_tells_of_either(options: dict[str, Any]) -> None:
    config = Config(**options)
    (fields,) = EVENT_FIELDS.given(config)
    assert fields.start(SimpleNamespace(config=config), 1) == options  # type: ignore[arg-type]


# ---- in a run


class Times(threading.local):
    """A stand-in for the module `time`: each rank has a clock that the test moves."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def thread_time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def behind(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which takes 100 seconds."""

        def g(*arguments: Any, **named: Any) -> Any:
            self.now += 100
            return f(*arguments, **named)

        return g

    def compute(self, step: int) -> None:
        """A forward pass: 1 second, 2 in the second step, and so on."""
        self.now += step + 1


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    fake = Times()
    monkeypatch.setattr(slow_ranks, "time", fake)
    return fake


def slept(times: Times, ranks: int, **options: Any) -> list[list[float]]:
    """By each rank, in a run of three steps; where ranks are in step BatchNorm sees all of them."""
    config = Config(batch_size=40, steps=3, **options)

    def build() -> nn.Module:
        model = Noted(times.compute)
        model.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), mlp(8, 8, 3))
        return model

    def rank(comm: Comm) -> list[float]:
        fit(comm, config, build, clouds(120))
        return times.slept

    return threads.run(ranks, rank)
