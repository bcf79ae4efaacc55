"""Steps of ranks with a GPU each, as graphs, of which sums and gathers by NCCL are parts."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE, device_count, emulated, needs_emulator
from helpers.training.pipelined import contents, digits

from nnmpi import Config, Trainer, nn
from nnmpi.addons.cuda.capture import Capture, Graph
from nnmpi.addons.cuda.deferred_steps import StepTail
from nnmpi.addons.cuda.graphs import Slots
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset
from nnmpi.parallel.step.beside_tape import ForwardBeside
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.step.recordable_stage import MicroBatch, RecordableStage
from nnmpi.parallel.step.replay import Replay
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.wire import wire_for

pytestmark = needs_emulator  # which has as many devices as there are ranks
ADAM = {"optimizer": "adam", "weight_decay": 0.01, "clip_norm": 0.5, "bucket_mb": 0.001}


def mlp() -> nn.Module:
    first = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2)
    rest = nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 10)
    return nn.Sequential(*first, *rest)


def trained(comm: Comm, data: Dataset | None = None, **options: Any) -> tuple[Any, list[bytes]]:
    """(losses and norms of the steps of two epochs, the parameters at their end)"""
    config = Config(**{"batch_size": 12, "epochs": 2, "device": "cuda", **ADAM, **options})
    trainer, results = Trainer(config, mlp, data or digits(), comm), []
    trainer.model.train()
    for epoch in range(2):
        start = StepState(len(results), epoch)
        results += trainer.strategy.steps(trainer.train, start)
    state = [array.tobytes() for array in contents(trainer).values()]
    trainer.close()
    return [(r.loss, r.gradient_norm, r.updated, r.request) for r in results], state


def run(ranks: int = 2, **options: Any) -> tuple[Any, Counter[str]]:
    """(what each rank has trained; the graphs that they have launched or captured, and the sums
    outside of graphs, among all calls)"""
    with device_count(ranks), machine.noting() as calls:
        got = threads.run(ranks, lambda comm: trained(comm, **options))
    return got, Counter(name if kind == "library" else kind for kind, name in calls)


BESIDE, WHOLE, BUCKETS = 1, 13, 3
"""Of the steps of two epochs, those beside graphs of passes, and those that are one graph."""


def step_graphs(whole: int, of_passes: int = BESIDE + 1, backward: int = BUCKETS) -> int:
    """The graphs of two ranks; those of passes are parts of a capture too. Where the whole step is
    a graph, a backward pass is one for each bucket."""
    return 2 * (whole + (1 + backward) * of_passes)


@pytest.mark.parametrize("order", machine.ORDERS)
def test_a_step_of_each_rank_is_one_graph_with_the_bits_of_the_tape(order: str) -> None:
    wanted, by_tape = run(compile=False)
    with emulated(order=order, seed=5):
        got, calls = run()
    assert got == wanted
    assert (calls["graph"], by_tape["graph"]) == (step_graphs(WHOLE), 0)
    assert by_tape["all-reduce"] - calls["all-reduce"] == 2 * BUCKETS * (
        WHOLE - 1
    )  # in the capture


def test_sums_begin_within_the_graph_as_soon_as_gradients_are_final(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts, launch, start = list[object](), Graph.launch, LocalStore.start
    in_turn = {"launch": (Graph, launch), "start": (LocalStore, start)}
    for name, (cls, method) in in_turn.items():

        def noted(self: Any, *given: int, method: Any = method) -> Any:
            if DEVICE.xp.cuda.get_current_stream().is_capturing() and not is_second():
                parts.append(*given or ["graph"])
            return method(self, *given)

        monkeypatch.setattr(cls, name, noted)
    run()
    assert parts == ["graph", "graph", 2, "graph", 1, "graph", 0]


def test_no_rank_launches_a_graph_where_another_one_has_none() -> None:
    """A label that is ignored needs other kernels, on the rank that has it."""
    whole = digits()
    labels = whole.train.y.copy()
    labels[40] = -100
    data = whole._replace(train=whole.train._replace(y=labels))
    wanted, by_tape = run(data=data, compile=False)
    got, calls = run(data=data)
    assert got == wanted
    assert by_tape["all-reduce"] - calls["all-reduce"] == 2 * BUCKETS * (WHOLE - 1 - 2)


def test_all_ranks_go_on_without_a_graph_that_one_cannot_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute = StepTail.compute

    def cannot(self: StepTail, loss: Any) -> None:
        compute(self, loss)
        if self._store.dp.rank == 1:
            raise RuntimeError("no more memory")

    wanted, _ = run(compile=False)
    monkeypatch.setattr(StepTail, "compute", cannot)
    got, calls = run()
    assert got == wanted
    assert calls["graph"] == step_graphs(0, BESIDE + 1 + WHOLE)


@pytest.mark.parametrize(
    ("options", "graphs"),
    [
        ({"micro_batches": 2}, 2 * step_graphs(0, BESIDE + WHOLE, 1)),
        pytest.param(
            *({"dtype": "float16"}, step_graphs(0, BESIDE + WHOLE, 1)), marks=pytest.mark.long
        ),
        ({"jitter": "0.1:1.5"}, 0),
    ],
    ids=str,
)
def test_other_steps_of_ranks_are_no_whole_graph(options: dict[str, Any], graphs: int) -> None:
    wanted, _ = run(**options, compile=False)
    got, calls = run(**options)
    assert (got, calls["graph"]) == (wanted, graphs)


def test_a_request_of_one_rank_is_known_to_all_in_one_step() -> None:
    def requests(comm: Comm) -> list[float]:
        trainer = Trainer(Config(**ADAM, batch_size=12, device="cuda"), mlp, digits(), comm)
        trainer.model.train()
        known = list[float]()
        for result in trainer.strategy.steps(trainer.train, StepState()):
            known.append(result.request)
            if len(known) == 6 and comm.rank:
                trainer.stop()
        trainer.close()
        return known

    with device_count(2):
        first, second = threads.run(2, requests)
    assert first == second == [0] * 7 + [1, 1]


# ---- tensor parallelism: the passes of a rank, with what they exchange


@pytest.mark.parametrize("order", machine.ORDERS)
def test_passes_of_ranks_that_share_layers_are_two_graphs(order: str) -> None:
    wanted, _ = run(tp=2, compile=False)
    with emulated(order=order, seed=7):
        got, calls = run(tp=2)
    assert (got, calls["graph"]) == (wanted, step_graphs(0, BESIDE + WHOLE, 1))


def test_sums_over_replicas_follow_passes_of_ranks_that_share_layers() -> None:
    layout = {"tp": 2, "dp": 2, "zero": 1}
    wanted, _ = run(4, **layout, compile=False)
    got, calls = run(4, **layout)
    assert (got, calls["graph"]) == (wanted, 2 * step_graphs(0, BESIDE + WHOLE, 1))


def is_second() -> bool:
    """Whether the rank of this thread is rank 1."""
    return bool(DEVICE.xp.cuda.Device().id == 1)


def uncaptured(monkeypatch: pytest.MonkeyPatch) -> int:
    """The second rank cannot capture. Returns the number of graphs that are launched."""
    captured = RecordableStage.captured

    def failing(self: RecordableStage, micro: MicroBatch) -> Replay:
        if is_second():
            raise NumbersReadError("no more memory")
        return captured(self, micro)

    monkeypatch.setattr(RecordableStage, "captured", failing)
    return 0


def unlike(monkeypatch: pytest.MonkeyPatch) -> int:
    """The graphs of the second rank have other bits than the tape. Returns the number of graphs
    that are launched beside the tape."""
    is_same = ForwardBeside.is_same
    monkeypatch.setattr(
        ForwardBeside, "is_same", lambda *given: is_same(*given) and not is_second()
    )
    return step_graphs(0, BESIDE, 1)


@pytest.mark.parametrize("fails", [uncaptured, unlike])
def test_no_rank_replays_passes_that_one_cannot(
    fails: Callable[[pytest.MonkeyPatch], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = run(tp=2, compile=False)
    graphs = fails(monkeypatch)
    got, calls = run(tp=2)
    assert (got, calls["graph"]) == (wanted, graphs)


# ---- pipelines: the passes of each stage, for each micro-batch in flight


@pytest.mark.parametrize(
    ("ranks", "options", "of_step"),
    [
        (2, {"micro_batches": 3, "cut": "4"}, 2 * 3 * 2),
        (2, {"micro_batches": 3, "cut": "4", "schedule": "gpipe"}, 2 * 3 * 2),
        (2, {"micro_batches": 2, "cut": "4", "schedule": "zb-h1"}, 2 * 2 + 2 * 3),
        (2, {"micro_batches": 2, "cut": "4,6,8", "schedule": "interleaved"}, 4 * 2 * 2),
        (4, {"micro_batches": 2, "cut": "4", "tp": 2}, 4 * 2 * 2),
        (4, {"micro_batches": 2, "cut": "4", "zero": 1}, 4 * 2 * 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["eager", "random"])
def test_passes_of_stages_are_graphs(
    order: str, ranks: int, options: dict[str, Any], of_step: int
) -> None:
    wanted, _ = run(ranks, pp=2, **options, compile=False)
    with emulated(order=order, seed=9):
        got, calls = run(ranks, pp=2, **options)
    assert got == wanted
    assert calls["graph"] >= of_step * (BESIDE + WHOLE)


def test_a_slot_is_used_again_when_its_micro_batch_is_done_or_the_step_was_interrupted() -> None:
    each: Any = [SimpleNamespace(calls=2) for _ in range(2)]
    slots = Slots(each)
    first, second = slots.acquire(), slots.acquire()
    first.free()
    assert slots.acquire() is first
    assert {id(slots.acquire()), id(slots.acquire())} == {id(first), id(second)}


def test_exchanges_through_the_host_are_in_no_graph() -> None:
    x = DEVICE.xp.ones(3)
    for exchange in (
        lambda: wire_for(comm_self(), x).isend(x, 0),
        lambda: wire_for(comm_self(), x).all_reduce(x),
        lambda: wire_for(comm_self(), np.ones(3)).all_reduce(np.ones(3)),
    ):
        with (
            pytest.raises(NumbersReadError, match=" between ranks through the host"),
            Capture(DEVICE).graph(),
        ):
            exchange()
