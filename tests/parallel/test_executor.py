"""The executor: what it is given decides what it does; here two stages with a wire between them."""

from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn, optim
from nnmpi.backend import CPU
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Batch, Load
from nnmpi.mesh import Mesh
from nnmpi.parallel.data.buckets import cut_buckets
from nnmpi.parallel.data.gradient_sync import BucketedSync
from nnmpi.parallel.executor import Executor, Loss, Samples, Stage
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.state import StepResult, StepState
from nnmpi.parallel.stores.head import head_length
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.update import Update

ROWS, MICRO = 12, 3


class Wire:
    """Activations to the next rank, and their gradients back; as source and as sink."""

    def __init__(self, comm: Comm, peer: int, width: int) -> None:
        self._comm, self._peer, self._width = comm, peer, width

    def begin(self, load: Load) -> None:
        self._rows = [len(batch.samples) for batch in load.micro]

    def _receive(self, micro: int) -> np.ndarray:
        array = np.empty((self._rows[micro], self._width))
        self._comm.irecv(array, self._peer).wait()
        return array

    def take(self, micro: int) -> nnmpi.Tensor:
        return nnmpi.tensor(self._receive(micro), requires_grad=True)

    def give_back(self, micro: int, x: nnmpi.Tensor) -> None:
        assert x.grad is not None
        self._comm.isend(x.grad, self._peer).wait()

    def put(self, micro: int, y: nnmpi.Tensor) -> nnmpi.Tensor:
        self._comm.isend(np.ascontiguousarray(y.data), self._peer).wait()
        return y

    def seed(self, micro: int, root: nnmpi.Tensor) -> np.ndarray:
        return self._receive(micro)

    def loss(self) -> float:
        return 0.0


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))
    made.seed = 2
    return made


def stages(whole: nn.Sequential, comm: Comm) -> list[Stage]:
    """Of this rank: everything on one, a half on each of two."""
    samples, loss = Samples(CPU), Loss(nn.CrossEntropyLoss(reduction="sum"))
    if comm.size == 1:
        return [Stage(whole, samples, loss)]
    wire = Wire(comm, 1 - comm.rank, 6)
    return [Stage(whole[:3], samples, wire) if comm.rank == 0 else Stage(whole[3:], wire, loss)]


def load(step: int) -> Load:
    rng, rows = np.random.default_rng(step), np.arange(ROWS)
    x, y = rng.standard_normal((ROWS, 4)), rng.integers(0, 3, ROWS)
    return Load(rows, [Batch(x[part], y[part], part) for part in np.array_split(rows, MICRO)])


def train(comm: Comm, stop_at: int = 99) -> tuple[dict[str, np.ndarray], list[StepResult]]:
    whole = model()
    own = stages(whole, comm)
    own[0].module.to("float64")
    parameters = own[0].module.parameters()
    store = LocalStore(parameters, "float64", CPU, head_length(parameters))
    adam = optim.Adam(parameters)
    mesh = Mesh({"dp": 1, "pp": comm.size, "tp": 1})
    layout = Layout(mesh, 0, comm, {}, comm, threads.comm_self())
    state, results = StepState(), list[StepResult]()
    buckets = cut_buckets(store.spans, np.inf, 8, threads.comm_self())
    executor = Executor(
        own,
        BucketedSync(store, buckets, overlap=True),
        Update(store, adam, 0.05, lambda step: 0.01, layout),
        lambda: comm.rank == comm.size - 1 and state.step == stop_at,
    )
    for step in range(4):
        results.append(executor.run(load(step), state, batches=10))
        state = results[-1].state
    return {p.place.path: p.data.copy() for p in parameters}, results


def test_two_stages_train_as_one() -> None:
    """Dropout, clipping by the norm of both stages, and micro-batches included."""
    ((wanted, expected),) = threads.run(1, train)
    found: dict[str, np.ndarray] = {}
    for state, results in threads.run(2, train):
        found |= state
        for done, one in zip(results, expected, strict=True):
            assert done.loss == pytest.approx(one.loss, rel=1e-12)
            assert (done.state, done.samples, done.updated) == (one.state, one.samples, True)
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-12, err_msg=path)


def test_all_stages_agree_to_stop() -> None:
    for _, results in threads.run(2, train, 2):
        assert [done.stop for done in results] == [False, False, True, False]


def test_a_stage_that_is_not_finite_keeps_all_from_updating(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    squares = LocalStore.squares

    def spoilt(store: LocalStore, *arguments: Any) -> Any:
        first = store.parameters[0].place.path.startswith("0")
        return squares(store, *arguments) * (np.nan if first else 1.0)

    monkeypatch.setattr(LocalStore, "squares", spoilt)
    start = {p.place.path: p.data for p in model().to("float64").parameters()}
    for state, results in threads.run(2, train):
        assert not any(done.updated for done in results)
        for path, value in state.items():
            np.testing.assert_array_equal(value, start[path])
