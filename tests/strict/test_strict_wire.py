"""Wires on a device: results, what a missing wait does, memory that stays, waits of each layout."""

import math
from typing import Any

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE, device_count, emulated, needs_device, needs_emulator
from helpers.training.on_device import on_device
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.arrays import devices
from nnmpi.arrays.backend import CPU
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.io.output.messages import as_text
from nnmpi.parallel import staging, unit_costs, wire
from nnmpi.parallel.wire import wire_of

pytestmark = needs_device
xp = DEVICE.xp
N = 37  # numbers: some pieces, the last of which is short


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE_BYTES", 64)


# ---- results


def sums(comm: Comm) -> None:
    there = wire_of(comm, DEVICE)
    own = np.arange(N) * (comm.rank + 1.0)
    want = np.arange(N) * float(sum(range(1, comm.size + 1)))
    for algorithm in ("ring", "mpi", "doubling"):
        a, b = xp.asarray(own), xp.asarray(2 * own)
        first, second = there.start(a, algorithm), there.start(b, "ring")
        second.wait()
        first.wait()
        assert first.done
        assert first.poll()
        np.testing.assert_allclose(a.get(), want)
        np.testing.assert_allclose(b.get(), 2 * want)
    turned = xp.ones((4, 5)).T
    there.all_reduce(turned, "ring")
    assert (turned.get() == comm.size).all()
    there.start(xp.zeros(0), "ring").wait()


def parts(comm: Comm) -> None:
    there, own = wire_of(comm, DEVICE), comm.chunk(N)
    uneven = [N - 3 * (comm.size - 1), *[3] * (comm.size - 1)]
    ends = np.cumsum([0, *uneven])
    for lengths, mine in ((None, own), (uneven, slice(*ends[comm.rank : comm.rank + 2].tolist()))):
        a = xp.arange(N, dtype="float64")
        there.start_reduce_scatter(a, parts=lengths).wait()
        np.testing.assert_array_equal(a.get()[mine], comm.size * np.arange(N)[mine])
        b, c = xp.zeros(N), xp.zeros(N)
        b[mine], c[mine] = a[mine], a[mine]
        there.start_all_gather(b, parts=lengths).wait()
        there.all_gather(c, parts=lengths)
        for whole in (b, c):
            np.testing.assert_array_equal(whole.get(), comm.size * np.arange(N))


def messages(comm: Comm) -> None:
    """Several of one tag arrive in their order, whichever copy is asked for first."""
    there = wire_of(comm, DEVICE)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = [xp.empty(N) for _ in range(3)]
    works = [there.irecv(array, before, 5) for array in received]
    works += [there.isend(xp.full(N, 10.0 * comm.rank + k), after, 5) for k in range(3)]
    for work in reversed(works):
        work.wait()
    for k, array in enumerate(received):
        assert (array.get() == 10 * before + k).all()
    last = xp.full(3, float(comm.rank))
    there.broadcast(last, comm.size - 1)
    assert (last.get() == comm.size - 1).all()


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("law", [sums, parts, messages])
def test_pieces_on_a_device_are_those_of_the_host(law: Any, ranks: int) -> None:
    threads.run(ranks, law)


# ---- a missing wait


def at_once(self: Any) -> bool:
    self._is_ready = True
    return True


def nothing(*_: object) -> None:
    return None


def put_without_waiting(self: Any, host: np.ndarray, array: Any) -> None:
    array.set(host, stream=self.stream)


MISSING: dict[str, tuple[Any, str, Any]] = {
    "the host does not wait for a copy": (staging.Staging, "ready", at_once),
    "a copy does not wait for kernels": (devices.CopyStream, "follow", nothing),
    "kernels do not wait for a copy": (devices.CopyStream, "put", put_without_waiting),
}
"""A device that does its work as late as it may shows each."""


@needs_emulator
@pytest.mark.parametrize("missing", MISSING)
def test_a_missing_wait_changes_the_sum(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def total(comm: Comm) -> float:
        a = xp.ones(N)
        wire_of(comm, DEVICE).start(a, "ring").wait()
        return float(a.sum())

    with emulated(order="late"):
        assert threads.run(2, total) == [2 * N] * 2
        monkeypatch.setattr(*MISSING[missing])
        assert threads.run(2, total) != [2 * N] * 2


# ---- memory that stays


def build() -> nn.Module:
    """BatchNorm once; no bias before it."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU()),
        *(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 10)),
    )


def train(ranks: int, steps: int, *callbacks: Any, **options: Any) -> list[Trainer]:
    def one(comm: Comm) -> Trainer:
        config = Config(batch_size=12, steps=steps, **options)
        with Trainer(config, build, digits(), comm, callbacks=callbacks) as trainer:
            trainer.fit(NullReport())
            return trainer

    with on_device():
        return threads.run(ranks, one)


# ---- waits

NORM = 2
"""BatchNorm over ranks waits in its forward and in its backward pass."""

WAITS: dict[str, tuple[int, dict[str, Any], int]] = {
    "dp": (2, {}, 1 + NORM),
    "dp, clipping": (2, {"clip_norm": 0.1}, 1 + NORM),
    "zero 1": (3, {"zero": 1}, 1 + NORM),
    "zero 2": (3, {"zero": 2}, 1 + NORM),
    "zero 3": (2, {"zero": 3}, 1 + NORM),
    "pp": (2, {"pp": 2, "micro_batches": 2, "cut": "4"}, 1),
    # three sums of activations; the loss of divided classes looks twice for labels that are here
    "tp": (2, {"tp": 2}, 1 + 3 + 2),
    "dp and tp": (4, {"dp": 2, "tp": 2}, 1 + NORM + 3 + 2),
}
"""Ranks, options, and the waits of each rank in a step."""


@needs_emulator
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", WAITS)
def test_a_step_waits_for_the_device_once_besides_what_ranks_need_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, options, wanted = WAITS[name]
    # so that stages are measured by equally many passes in all runs
    monkeypatch.setattr(unit_costs, "LIMIT", math.inf)
    found = []
    for steps in (3, 5):
        with machine.noting() as calls:
            train(ranks, steps, **options)
        found.append(machine.waits(calls))
    assert found[1] - found[0] == 2 * ranks * wanted


# ---- devices and numbers


@needs_emulator
def test_the_rank_within_its_node_picks_the_device_and_two_may_share_one() -> None:
    with device_count(2):
        trainers = train(3, 1)
    assert trainers[0].arrangement.cluster.devices == (0, 1, 0)
    event = trainers[1].describe()
    assert event["devices"] == [0, 1, 0]
    assert "on 3 ranks, GPUs 0 1 0 by rank, " in as_text(event)


def test_ranks_train_on_the_cpu_if_one_of_them_has_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nnmpi.parallel.arrangement.cluster import common_backend

    assert threads.run(2, lambda comm: common_backend(comm, DEVICE if comm.rank else CPU)) == [
        CPU,
        CPU,
    ]
