"""Messages between stages that are received late: a stage may be far ahead of the next one."""

from threading import Event
from typing import Any

import pytest
from helpers.training.pipelined import Heard, digits

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.step.channels import BoundaryEnd, Outlet


class Aside(nn.Module):
    """Its result depends on a trained layer through which no gradient flows."""

    def __init__(self) -> None:
        self.layer = nn.Linear(64, 64)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return x * (self.layer(x).detach() > 0)


class PassedOn(nn.Module):
    """Its result lies in the memory of its input."""

    def __init__(self) -> None:
        self.layer = nn.Linear(64, 64)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        self.layer(x).sum()
        return x.reshape(len(x), 64)


OPTIONS: dict[str, Any] = {"dtype": "float64", "batch_size": 24, "micro_batches": 4, "steps": 3}


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Aside(), PassedOn(), nn.Linear(64, 10))


class Late:
    """From the second step on, the last stage receives nothing before the stage in front of it has
    sent all micro-batches."""

    def __init__(self) -> None:
        self.is_late, self.all_sent = False, Event()

    def on_step(self, trainer: nnmpi.Trainer, event: dict[str, Any]) -> None:
        self.is_late = True

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send, receive = Outlet.send, BoundaryEnd.receive

        def sends(end: Outlet, micro: int, peer: int) -> None:
            send(end, micro, peer)
            if self.is_late and end.stage == 1 and micro == 3:
                self.all_sent.set()

        def receives(end: BoundaryEnd, micro: int, peer: int) -> None:
            assert not self.is_late or end.stage != 2 or self.all_sent.wait(60)
            receive(end, micro, peer)

        monkeypatch.setattr(Outlet, "send", sends)
        monkeypatch.setattr(BoundaryEnd, "receive", receives)


def test_a_stage_without_gradients_may_be_a_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the memory of what it has sent it has received the next micro-batches meanwhile."""
    late = Late()

    def losses(comm: Comm, **layout: Any) -> list[float]:
        config, heard = Config(**OPTIONS, **layout), Heard()
        Trainer(config, build, digits(), comm, callbacks=[late] * (comm.size > 1)).fit(heard)
        return heard.losses

    wanted = losses(comm_self())
    late.patch(monkeypatch)
    for found in threads.run(3, lambda comm: losses(comm, pp=3, cut="2,3")):
        assert found == pytest.approx(wanted, rel=1e-10)
    assert late.all_sent.is_set()
