"""The executor: what it is given decides what it does, on meshes of several axes too."""

from typing import NamedTuple

import numpy as np
import pytest

import nnmpi
from nnmpi import nn, optim
from nnmpi.backend import CPU
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Batch, Load, Loader, Split, Standardiser
from nnmpi.data.loader import BatchSplit
from nnmpi.mesh import Mesh
from nnmpi.metrics import Sums
from nnmpi.nn.store import spans_of
from nnmpi.parallel.arrangement.arrange import cut_buckets
from nnmpi.parallel.arrangement.flat_buffer import scalar_count
from nnmpi.parallel.data.gradient_sync import BucketedSync
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.entries import Entries, first_difference
from nnmpi.parallel.model.parts import PartTable
from nnmpi.parallel.recorder import NO_RECORDER
from nnmpi.parallel.step.channels import Channels, Ports
from nnmpi.parallel.step.executor import Executor, StepResult, StepState
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.outputs import Measured
from nnmpi.parallel.step.ports import LossSink, Samples, Sink, Source, Stage
from nnmpi.parallel.step.update import Update
from nnmpi.parallel.stores.buckets import Buckets, CommBucket
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.schedules.lowering import forward_programs, programs
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES

ROWS, MICRO = 13, 3


class Wire(Source, Sink):
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

    def root(self, micro: int, y: nnmpi.Tensor) -> nnmpi.Tensor:
        return y

    def put(self, micro: int, root: nnmpi.Tensor) -> None:
        self._comm.isend(np.ascontiguousarray(root.data), self._peer).wait()

    def seed(self, micro: int, root: nnmpi.Tensor) -> np.ndarray:
        return self._receive(micro)

    def evaluate(self, micro: int, y: nnmpi.Tensor) -> None:
        self.put(micro, y)


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))
    made.seed = 2
    return made


NO_CHANNELS = Channels((), (), comm_self(), NO_RECORDER)
OBJECTIVE = Objective(nn.CrossEntropyLoss(reduction="sum"), {})


def half(whole: nn.Sequential, pp: Comm, loss: LossSink) -> Stage:
    """The stage of this rank: everything on one rank, a half on each of two."""
    samples = Samples(CPU)
    if pp.size == 1:
        return Stage(whole, samples, loss)
    wire = Wire(pp, 1 - pp.rank, 6)
    return Stage(whole[:3], samples, wire) if pp.rank == 0 else Stage(whole[3:], wire, loss)


def load(step: int, split: BatchSplit, spoilt: int | None = None) -> Load:
    rng, rows = np.random.default_rng(step), np.arange(ROWS)
    x, y = rng.standard_normal((ROWS, 4)), rng.integers(0, 3, ROWS)
    if step == spoilt:
        x[-1] = np.nan
    return Load(rows, [Batch(x[part], y[part], part) for part in split(rows)], len(rows))


def store_and_sync(
    parameters: list[nn.Parameter], dp: Comm, kind: str, users: list[frozenset[int]] | None = None
) -> tuple[LocalStore, BucketedSync]:
    scalars = scalar_count(parameters)
    where = spans_of([p.room for p in parameters], scalars)
    cut = [CommBucket(b.start, b.stop, dp) for b in cut_buckets(where, 0)]
    buckets = Buckets(where, cut, users or [frozenset([0])] * len(parameters), kind)
    make = NodeStore if dp.size > 1 and kind == "shared" else LocalStore
    store = make(StoreSpec(parameters, "float64", CPU, dp, scalars, buckets))
    return store, BucketedSync(store, overlap=True)


def one_stage(micro_batches: int) -> list[Op]:
    """The program of a model that is not cut."""
    return programs(SCHEDULES["1f1b"], 1, micro_batches)[0]


class Ran(NamedTuple):
    """What a run of four steps has come to."""

    state: dict[str, np.ndarray]
    results: list[StepResult]
    difference: tuple[str, int] | None  # between copies
    test: Sums  # of an evaluation, over all ranks


def train(
    comm: Comm,
    axes: dict[str, int],
    kind: str = "ring",
    spoilt: int | None = None,
    stop_at: int | None = None,
) -> Ran:
    layout = Layout.on(Mesh(axes), comm)
    dp, pp, whole = layout.axis["dp"], layout.axis["pp"], model()
    loss = LossSink(OBJECTIVE)
    stage = half(whole, pp, loss)
    stage.module.to("float64")
    parameters = [*stage.module.parameters()]
    held = {p.place.path for p in parameters}.__contains__
    store, sync = store_and_sync(parameters, dp, kind)
    counts = PartTable.of_model(whole, layout.model, held).counts
    state, results = StepState(), list[StepResult]()
    executor = Executor(
        Ports({0: stage}, NO_CHANNELS, loss),
        sync,
        Update(store, optim.Adam(parameters), 0.05, lambda step: 0.2, layout, counts).apply,
        lambda: comm.rank == comm.size - 1 and state.step == stop_at,
        one_stage,
        lambda micro_batches: forward_programs(1, micro_batches)[0],
    )
    split = BatchSplit(MICRO, dp.size, dp.rank)
    for step in range(4):
        results.append(executor.run(load(step, split, spoilt), state, batches=10))
        state = results[-1].state
    entries = Entries.of_model(whole, comm, held)
    found = {entry.place.path: entry.value for entry in entries.on_all_ranks()}
    difference = first_difference(entries.parts)
    whole.eval()
    row = Measured(OBJECTIVE)
    executor.evaluate(loader().loads(0, BatchSplit(1, dp.size, dp.rank)), 4, row)
    if not layout.counts_loss:
        row.clear()
    row.add_up(comm, lambda sums: comm.all_reduce(sums, "ring"))
    return Ran(found, results, difference, row.sums)


def loader() -> Loader:
    rng = np.random.default_rng(9)
    split = Split(rng.standard_normal((11, 4)), np.arange(11) % 3)
    plain = Standardiser(np.zeros(4), np.ones(4))
    return Loader(split, 4, standardiser=plain, dtype="float64", shuffle=False)


ONE = {"dp": 1, "pp": 1, "tp": 1}
MESHES = [
    ({"dp": dp, "pp": pp, "tp": tp}, kind)
    for dp, pp, tp in [(2, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2)]
    for kind in (("ring", "shared") if dp > 1 else ("ring",))
]


@pytest.mark.parametrize("spoilt", [None, 2])
@pytest.mark.parametrize(("axes", "kind"), MESHES, ids=str)
def test_every_mesh_trains_as_one_rank(axes: dict[str, int], kind: str, spoilt: int | None) -> None:
    """Stages with a wire between them, copies over dp and over tp; dropout, micro-batches, clipping
    by the norm of all stages, a step that is not finite, and evaluation."""
    (wanted,) = threads.run(1, train, ONE, kind, spoilt)
    for found in threads.run(int(np.prod([*axes.values()])), train, axes, kind, spoilt):
        for done, one in zip(found.results, wanted.results, strict=True):
            assert done.loss == pytest.approx(one.loss, rel=1e-12, nan_ok=True)
            assert (done.state, done.samples, done.updated) == (one.state, one.samples, one.updated)
        assert [done.updated for done in found.results].count(False) == (spoilt is not None)
        assert found.difference is None
        assert found.state.keys() == wanted.state.keys()
        for path, value in wanted.state.items():
            np.testing.assert_allclose(found.state[path], value, rtol=1e-12, err_msg=path)
        assert found.test.loss == pytest.approx(wanted.test.loss, rel=1e-12)
        assert found.test._replace(loss=0) == wanted.test._replace(loss=0)


@pytest.mark.parametrize(
    "axes", [{"dp": 1, "pp": 2, "tp": 1}, {"dp": 2, "pp": 2, "tp": 1}], ids=str
)
def test_all_ranks_agree_to_stop(axes: dict[str, int]) -> None:
    for found in threads.run(2 * axes["dp"], train, axes, "ring", None, 2):
        assert [done.stop for done in found.results] == [False, False, True, False]


# ---- several stages on one rank


class Handed(Source, Sink):
    """A wire within one rank."""

    def __init__(self) -> None:
        self._there, self._back = dict[int, np.ndarray](), dict[int, np.ndarray]()

    def begin(self, load: Load) -> None:
        assert not self._there
        assert not self._back

    def take(self, micro: int) -> nnmpi.Tensor:
        return nnmpi.tensor(self._there.pop(micro), requires_grad=True)

    def give_back(self, micro: int, x: nnmpi.Tensor) -> None:
        assert x.grad is not None
        self._back[micro] = x.grad

    def root(self, micro: int, y: nnmpi.Tensor) -> nnmpi.Tensor:
        return y

    def put(self, micro: int, root: nnmpi.Tensor) -> None:
        self._there[micro] = root.data

    def seed(self, micro: int, root: nnmpi.Tensor) -> np.ndarray:
        return self._back.pop(micro)


def two_stages(micro_batches: int) -> list[Op]:
    ops: list[Op] = []
    for m in range(micro_batches):
        ops += [Op(Kind.F, m, 0), Op(Kind.F, m, 1)]
        ops += [Op(Kind.REDUCE)] * (m == micro_batches - 1)
        ops += [Op(Kind.B, m, 1), Op(Kind.B, m, 0)]
    return [*ops, Op(Kind.UPDATE)]


def tied(cut: bool, comm: Comm) -> tuple[dict[str, np.ndarray], list[float]]:
    """Three layers, of which the first and the last have one weight, in one stage or in two."""
    whole = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    whole[3].weight = whole[0].weight
    whole.to("float64")
    parameters = [whole[0].bias, whole[2].weight, whole[2].bias, whole[3].bias, whole[0].weight]
    users = [frozenset(s) for s in ([0], [0], [0], [1], [0, 1])] if cut else None
    store, sync = store_and_sync(parameters, comm, "ring", users)
    samples, loss, wire = Samples(CPU), LossSink(OBJECTIVE), Handed()
    split = BatchSplit(MICRO, comm.size, comm.rank)
    layout = Layout.on(Mesh({"dp": comm.size, "pp": 1, "tp": 1}), comm)
    stages = {0: Stage(whole[:3], samples, wire), 1: Stage(whole[3:], wire, loss)}
    executor = Executor(
        Ports(stages if cut else {0: Stage(whole, samples, loss)}, NO_CHANNELS, loss),
        sync,
        Update(
            store, optim.SGD(parameters, 0.1), 0.5, lambda step: 1.0, layout, lambda p: True
        ).apply,
        lambda: False,
        two_stages if cut else one_stage,
        one_stage,
    )
    state, losses = StepState(), list[float]()
    for step in range(3):
        result = executor.run(load(step, split), state, batches=10)
        state = result.state
        losses.append(result.loss)
    return {path: p.data.copy() for path, p in whole.named_parameters()}, losses


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_weight_of_two_stages_is_summed_when_both_are_done(ranks: int) -> None:
    ((wanted, losses),) = threads.run(1, lambda comm: tied(False, comm))
    for found, own in threads.run(ranks, lambda comm: tied(True, comm)):
        np.testing.assert_allclose(own, losses, rtol=1e-12)
        for path, value in wanted.items():
            np.testing.assert_allclose(found[path], value, rtol=1e-12, err_msg=path)
