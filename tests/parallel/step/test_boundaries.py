"""Tensors that pass between stages: as they lie in memory, without a copy."""

from collections.abc import Iterator
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.graph import Axis, Edge
from nnmpi.nn.parameter import inverse
from nnmpi.parallel.step.channels import BoundaryEnd, Channels

ORDERS = [*permutations(range(3))]
BATCH: Any = SimpleNamespace(micro=[SimpleNamespace(samples=range(2))])
VALUES = np.arange(24.0).reshape(2, 3, 4)


def laid_out(order: tuple[int, ...]) -> np.ndarray:
    """The values with their axes in this order in memory."""
    return np.ascontiguousarray(VALUES.transpose(order)).transpose(inverse(order))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_message_has_the_axes_in_the_order_of_the_boundary(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an array whose axes lie otherwise in memory, as those of a divided layer may: only
    that is copied."""
    edge = Edge((Axis(1, True), Axis(3), Axis(4)), "float64", order, True, 0)
    send, receive, messages = Comm.isend, Comm.irecv, list[np.ndarray]()

    def noted(call: Any, comm: Comm, array: np.ndarray, *arguments: Any) -> Any:
        messages.append(array)
        return call(comm, array, *arguments)

    monkeypatch.setattr(Comm, "isend", lambda *given: noted(send, *given))
    monkeypatch.setattr(Comm, "irecv", lambda *given: noted(receive, *given))

    def rank(comm: Comm, array: np.ndarray) -> None:
        channels = Channels([(edge,)], [comm.rank], comm)
        if comm.rank:
            inlet = channels.inlets[1]
            inlet.begin(BATCH)
            inlet.receive(0, 0)
            arrived: Any = inlet.next_input(0)
            np.testing.assert_array_equal(arrived.array, VALUES)
            return
        outlet = channels.outlets[0]
        outlet.begin(BATCH)
        outlet.put(0, [array])
        outlet.send(0, 1)
        channels.sends.finish()

    for own in ORDERS:
        messages.clear()
        array = laid_out(own)
        threads.run(2, lambda comm, array=array: rank(comm, array))
        assert {message.shape for message in messages} == {VALUES.transpose(order).shape}
        if own == order:
            assert all(message.flags.c_contiguous for message in messages)
            assert any(np.shares_memory(message, array) for message in messages)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_buffers_go_back_to_their_pools(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each micro-batch on both sides: after its backward pass, or the second half of that."""
    given_back, done = list[tuple[int, int]](), BoundaryEnd.done

    def noted(end: BoundaryEnd, micro: int) -> None:
        given_back.append((end.stage, micro))
        done(end, micro)

    monkeypatch.setattr(BoundaryEnd, "done", noted)
    config = Config(model="mlp:64-20-10", pp=2, micro_batches=3, schedule=schedule, steps=1)
    threads.run(2, lambda comm: next(steps_of(Trainer(config, comm=comm))))
    assert sorted(given_back) == [(stage, micro) for stage in range(2) for micro in range(3)]


def steps_of(trainer: Trainer) -> Iterator[Any]:
    return trainer.strategy.steps(trainer.train, trainer.state)
