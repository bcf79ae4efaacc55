"""Runs of `train` on three ranks, with a callback that ends them."""

from functools import partial
from typing import Any

import pytest

from nnmpi import Config, Trainer, train
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event
from nnmpi.parallel.strategy import AgreedError

IRIS: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "epochs": 3, "quiet": True}


class AfterAnEpoch:
    """A callback that does something after the second epoch."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        if event["epoch"] == 2:
            self._act(trainer)


def fails_on_all(trainer: Trainer) -> None:
    raise AgreedError("of all ranks")


def statuses(
    act: Any, monkeypatch: pytest.MonkeyPatch, fault_tolerant: bool = True, **options: Any
) -> list[int | str | None]:
    """What `train` returns on each of three ranks, or raises: then a rank is lost, where it can."""
    with_callback = partial(Trainer, callbacks=[AfterAnEpoch(act)])
    monkeypatch.setattr(train, "Trainer", with_callback)

    def status(comm: Comm) -> int | str:
        try:
            return train.train(Config(**IRIS, **options), comm, ())
        except Exception as error:
            if isinstance(error, ValueError):
                threads.kill(comm)
            return type(error).__name__

    return threads.run(3, status, fault_tolerant=fault_tolerant)
