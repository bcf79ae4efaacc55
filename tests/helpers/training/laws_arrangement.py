"""What an arrangement says on paper is what the built run holds and sends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.saved_memory import nbytes, saved_memory
from helpers.training.pipelined import digits

from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.addons.planning.paper.activations import pass_bytes
from nnmpi.addons.planning.paper.rank import memory, traffic
from nnmpi.arrays import meta
from nnmpi.comm import Comm, comm_self
from nnmpi.comm.transport.base import SharedWindow
from nnmpi.comm.transport.threads import ThreadTransport
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import TRAFFIC_AXES, AxisTraffic, Traffic
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.arrangement.partition import layers, units
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.step.objective import widened
from nnmpi.parallel.step.step_traffic import sent_along
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.parallel.stores.zero import ZeroStore

Options = dict[str, Any]


class Made(NamedTuple):
    """The communicators and the shared memory that each rank has made."""

    by_thread: dict[int, list[Comm]]
    windows: dict[int, dict[int, int]]

    @property
    def here(self) -> list[Comm]:
        return self.by_thread[threading.get_ident()]

    @property
    def window_bytes(self) -> int:
        """Of this rank's windows that are not freed."""
        return sum(self.windows.get(threading.get_ident(), {}).values())


@contextmanager
def communicators(monkeypatch: Any) -> Iterator[Made]:
    """Within it all communicators and windows are remembered."""
    made, plain, plain_window = Made({}, {}), Comm.__init__, ThreadTransport.window

    def init(self: Comm, *args: Any, **named: Any) -> None:
        plain(self, *args, **named)
        made.by_thread.setdefault(threading.get_ident(), []).append(self)

    def window(self: ThreadTransport, nbytes: int) -> SharedWindow:
        own = made.windows.setdefault(threading.get_ident(), {})
        number = next(numbers)
        own[number] = nbytes
        return plain_window(self, nbytes)._replace(free=lambda: own.pop(number))

    numbers = count()
    with monkeypatch.context() as patched:
        patched.setattr(Comm, "__init__", init)
        patched.setattr(ThreadTransport, "window", window)
        yield made


def holds_and_sends_what_is_said(comm: Comm, made: Made, options: Options) -> None:
    """Memory and messages of a step exactly, activations within 5%; where tokens go to some of the
    experts on other ranks, what is said of messages along tp and of activations is the most."""
    trainer, steps, taken = sends_what_is_said(comm, made, options)
    _holds(trainer, comm, made)
    _keeps(trainer, taken)
    comm.barrier()
    steps.close()
    trainer.close()


def only_sends_what_is_said(comm: Comm, made: Made, options: Options) -> None:
    """Messages of a step exactly; what a rank holds differs from step to step."""
    trainer, steps, _ = sends_what_is_said(comm, made, options)
    comm.barrier()
    list(steps)
    trainer.close()


Taken = dict[int, list[Tensor]]
"""What each stage of a rank has taken of its first micro-batch."""


def sends_what_is_said(comm: Comm, made: Made, options: Options) -> tuple[Trainer, Any, Taken]:
    """After some steps; returns the Trainer, steps that are left, and what stages have taken."""
    trainer, steps, taken = _begun(comm, options)
    a = trainer.arrangement
    before: AxisTraffic = dict.fromkeys(TRAFFIC_AXES, Traffic())
    after = before
    for _ in range(3):  # the first step has what the next ones need no more
        next(steps)
        _complete(trainer)
        before, after = after, sent_along(trainer.strategy.layout, made.here)
    expected = traffic(a, comm.rank, a.config.batch_size)
    found = {axis: after[axis] - before[axis] for axis in before}
    if is_routed(a):
        tp, most = found["tp"], expected["tp"]
        assert 0 < tp.bytes <= most.bytes, f"rank {comm.rank} sends {tp}, more than {most}"
        assert 0 < tp.messages <= most.messages
        found["tp"] = most
    assert found == expected, f"rank {comm.rank} sends {found}, not {expected}"
    return trainer, steps, taken


def _begun(comm: Comm, options: Options) -> tuple[Trainer, Any, Taken]:
    """A Trainer, and its steps; what stages take is there once they have run, with its numbers,
    since what experts keep depends on the gates."""
    plain: Options = {"dtype": "float64", "epochs": 1, "batch_size": 24}
    others = {name: value for name, value in options.items() if name not in ("build", "given")}
    given = options.get("given", digits)()
    trainer = Trainer(Config(**plain | others), options.get("build"), given, comm)
    trainer.model.train()
    taken: Taken = {}

    def remember(s: int, stage: nn.Module, x: tuple[Tensor, ...]) -> None:
        if s not in taken:
            taken[s] = [Tensor(t.array.copy(order="K"), t.requires_grad) for t in x]

    for s, stage in trainer.part.stages.items():
        stage.register_forward_pre_hook(partial(remember, s))
    return trainer, trainer.strategy.steps(trainer.train, StepState()), taken


def keeps_what_is_said(comm: Comm, options: Options) -> None:
    """Activations alone."""
    trainer, steps, taken = _begun(comm, options)
    next(steps)
    _keeps(trainer, taken)
    comm.barrier()
    steps.close()
    trainer.close()


def cuts(options: Options) -> list[str]:
    """All cuts of a model into two stages; with ranks along tp those between its units."""
    with Trainer(Config(), options["build"], options.get("given", digits)(), comm_self()) as whole:
        graph = whole.arrangement.graph
    found = units(graph) if "tp" in options else layers(graph)
    first, *_, last = (k for k, one in enumerate(found) if one.is_trained)
    return [str(one.first) for one in found[first + 1 : last + 1]]


def is_routed(a: Arrangement) -> bool:
    """Whether it depends on the data which tokens go to which ranks."""
    nodes = (
        a.graph.nodes[layer.node]
        for layer in a.sharding.layers
        if layer.way.pattern.how == "all-to-all"
    )
    return any(node.settings["top_k"] < node.settings["num_experts"] for node in nodes)


def _complete(trainer: Trainer) -> None:
    store = trainer.optimizer.parameters[0].store
    if isinstance(store, ZeroStore):
        store.wait()


def _holds(trainer: Trainer, comm: Comm, made: Made) -> None:
    said = memory(trainer.arrangement, comm.rank, trainer.config.batch_size)
    stores = {p.store for p in trainer.optimizer.parameters}
    (store,) = (s for s in stores if isinstance(s, FlatStore))
    masters = store.masters if isinstance(store, LocalStore) else None
    held = {
        "parameters": store.parameter_bytes(),
        "gradients": store.gradient_bytes(),
        "optimizer": sum(a.nbytes for a in trainer.optimizer.state.values())
        + (0 if masters is None else masters.nbytes),
        "slots": store.slot_bytes(),
        "buffers": sum(
            np.asarray(b).nbytes
            for place, b in trainer.part.model.tensors()
            if not isinstance(b, Parameter) and trainer.part.held(place.path)
        ),
    }
    in_windows = store.parameter_bytes() + store.gradient_bytes()
    held["windows"] = made.window_bytes - in_windows * isinstance(store, NodeStore)
    said_of = {name: getattr(said, name) for name in held}
    assert said_of == held, f"rank {comm.rank} holds {held}, not {said_of}"


def _keeps(trainer: Trainer, taken: Taken) -> None:
    """Activations of a micro-batch, within 5% or 100 bytes, stage by stage."""
    a, rank = trainer.arrangement, trainer.comm.rank
    n = micro_batches(a, rank, a.config.batch_size)[0]
    for s, stage in trainer.part.stages.items():
        x = taken[s]
        with trainer.gathered_parameters():
            y = stage(*x)
            if s == len(a.stages) - 1:
                labels = np.zeros((n, *y.shape[2:]), np.int64)
                y = trainer.session.task.objective.loss(widened(y), labels)
            y = [y] if isinstance(y, Tensor) else y  # outputs are sent: kept is what vjps read
            memory = saved_memory(y) | {id(m): m for m in (meta.owner(t._array) for t in x)}
            held = nbytes(memory.values())
        said = pass_bytes(a, rank, s, n).kept
        near = pytest.approx(said, rel=0.05, abs=100)
        is_less = is_routed(a) and held < said
        of = f"stage {s} of the cut at {a.division.begins}"
        assert is_less or held == near, f"{of} keeps {held}, not {said:.0f}"
