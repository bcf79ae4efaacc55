"""Values, gradients and optimizer state on disk but for those in use: the same bits."""

import threading
from itertools import islice
from typing import Any

import pytest

from nnmpi import Config, Trainer
from nnmpi.arrays import native
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.base import OtherRankError
from nnmpi.parallel.swapping import arena
from nnmpi.parallel.swapping.arena import Arena
from nnmpi.parallel.swapping.residence import residences_of
from nnmpi.planning.paper.activations import activations
from nnmpi.planning.paper.rank import memory

pytestmark = pytest.mark.skipif(
    native.kernel("arena") is None, reason="there is no arena without compiled kernels on Linux"
)
GPT: dict[str, Any] = {
    "model": "gpt:3x2x256",
    "data": "text",
    "context": 8,
    "batch_size": 2,
    "seed": 3,
    "epochs": 1,
}


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MEASURED", 1 << 20)


def needed(trainer: Trainer) -> int:
    a, batch = trainer.arrangement, trainer.config.batch_size
    return memory(a, 0, batch).total + activations(a, 0, batch)


def trained(trainer: Trainer) -> str:
    """The digest after two steps."""
    for _ in islice(trainer.strategy.steps(trainer.train, trainer.state), 2):
        pass
    return trainer.strategy.full_state.sha256()


def within(share: float, comm: Comm | None = None, **how: Any) -> tuple[str, Trainer]:
    """The digest of a run with all of the memory, and one in a share of it."""
    with Trainer(Config(**GPT, **how), comm=comm) as plain:
        limit = needed(plain) * share
        digest = trained(plain)
    less = Trainer(Config(**GPT, **how, memory=f"{limit:.0f}B"), comm=comm)
    found = residences_of(less.arrangement)
    assert found is not None
    assert found.model is not None
    assert needed(less) <= limit * 1.001
    return digest, less


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "how",
    [
        {"clip_norm": 0.1, "micro_batches": 2},
        {"optimizer": "sgd", "momentum": 0.0, "dtype": "float64"},
    ],
    ids=["adam, clipping, gradients that add up", "sgd, float64"],
)
def test_it_has_the_bits_of_a_run_with_enough_memory(how: dict[str, Any]) -> None:
    digest, less = within(0.7, **how)
    with less:
        assert trained(less) == digest


# ---- what fails


def test_a_disk_that_is_full_on_one_rank_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made, failed = Arena.__init__, threading.local()

    def full(memory: Arena, nbytes: int) -> None:
        if getattr(failed, "rank", 0) == 1 and nbytes != arena.MEASURED:
            raise ValueError("memory: no space left on device")
        made(memory, nbytes)

    monkeypatch.setattr(Arena, "__init__", full)

    def run(comm: Comm) -> str:
        failed.rank = comm.rank
        with pytest.raises((ValueError, OtherRankError), match="no space left on device") as caught:
            within(0.75, comm, allreduce="ring")
        return str(caught.value)

    assert len(threads.run(2, run)) == 2


def test_a_strategy_that_is_left_ends_its_thread_and_may_be_closed() -> None:
    _, less = within(0.6)
    thread = next(t for t in reversed(threading.enumerate()) if t.name == "nnmpi-swap")
    with less:
        less.strategy.leave()
        assert not thread.is_alive()
