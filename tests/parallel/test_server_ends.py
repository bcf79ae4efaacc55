"""How runs with a parameter server end, before their first step and after."""

from typing import Any

import numpy as np
import pytest
from laws_training import Lost, nothing_moves
from laws_training import clouds as few
from served import IRIS, Ended, alike, clouds, fit

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, NoRoomError
from nnmpi.comm.transport import threads
from nnmpi.nn.models import mlp
from nnmpi.parallel import plan
from nnmpi.run.report import Silence
from nnmpi.run.trainer import DivergedError


class Stops(Silence):
    """Asks for an end after some steps."""

    def __init__(self, trainer: Trainer, after: int) -> None:
        super().__init__()
        self._trainer, self._after = trainer, after

    def progress(self, step: int, total: int, loss: float) -> None:
        if step >= self._after:
            self._trainer.stop()


@pytest.mark.parametrize("asks", range(4))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_any_rank_may_stop_in_the_middle_of_an_epoch(sync: str, asks: int) -> None:
    def rank(comm: Comm) -> Ended:
        config = Config(**IRIS | {"batch_size": 4}, epochs=1000, servers=2, sync=sync)
        trainer = Trainer(config, comm=comm)
        if comm.rank == asks >= 2:
            trainer.stop()  # a server hears of steps at the end of an epoch only
        stops = Stops(trainer, 3 if comm.rank == asks else 10**9)
        return Ended(trainer.fit(stops), trainer.model.state_dict())

    ended = threads.run(4, rank)
    alike(ended)
    assert ended[0].result["event"] == "stopped"
    assert 0 < ended[0].result["steps"] < 30 or sync == "asp"
    assert ended[0].result["steps"] < 1000


@pytest.mark.parametrize("options", [{"sync": "bsp"}, {"sync": "asp"}], ids=str)
def test_divergence_ends_all_ranks_alike(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> str:
        config = Config(**IRIS, servers=2, optimizer="sgd", lr=1e30, **options)
        with pytest.raises(DivergedError) as told:
            fit(comm, config)
        return str(told.value)

    assert all("the loss became" in text for text in threads.run(5, rank))


class Steep(nn.Module):
    """Scores are finite, and one gradient is not."""

    def __init__(self) -> None:
        self.net, self.steep = mlp(6, 8, 3), nn.Parameter(np.zeros(3, "float32"))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return self.net(x) + self.steep * 1e30


@pytest.mark.parametrize(("sync", "skipped"), [("bsp", 6), ("asp", 12)])
def test_what_is_not_finite_is_skipped_and_counted(sync: str, skipped: int) -> None:
    def rank(comm: Comm) -> tuple[Ended, int]:
        trainer = Trainer(
            Config(batch_size=40, epochs=1, sync=sync, servers=2), Steep, clouds(240), comm=comm
        )
        before = trainer.model.state_dict()
        ended = Ended(trainer.fit(Silence()), trainer.model.state_dict())
        for name, array in before.items():
            np.testing.assert_array_equal(ended.state[name], array)
        return ended, ended.result["skipped_steps"]

    found = threads.run(4, rank)
    alike([ended for ended, _ in found])
    assert [n for _, n in found] == [skipped] * 4


@pytest.mark.parametrize("options", [{"sync": "bsp"}, {"sync": "asp"}], ids=str)
def test_a_loss_that_is_no_number_moves_nothing_though_its_gradient_is_one(
    options: dict[str, Any],
) -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(batch_size=40, servers=1, **options), Lost, few(), comm)
        nothing_moves(trainer)

    threads.run(3, rank)


def test_a_node_without_room_for_it_sends_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def common(*_: object) -> None:
        raise NoRoomError

    def how(comm: Comm) -> object:
        return Trainer(Config(**IRIS, servers=1), comm=comm).describe()["exchange"]

    assert threads.run(2, how) == ["memory"] * 2
    assert threads.run(2, how, per_node=1) == ["messages"] * 2
    monkeypatch.setattr(Comm, "common", common)
    assert threads.run(2, how) == ["messages"] * 2


@pytest.mark.parametrize(
    ("ranks", "options", "says"),
    [
        (1, {"sync": "asp"}, "sync asp with 1 server leaves none of 1 rank to train: "
         "start mpirun -n 2 or more"),
        (3, {"servers": 3}, "sync bsp with 3 servers leaves none of 3 ranks to train: "
         "start mpirun -n 4 or more"),
        (3, {"staleness": 2}, "staleness 2 with sync bsp: it is for --sync ssp"),
        (3, {"staleness": 2, "sync": "asp"}, "staleness 2 with sync asp: it is for --sync ssp"),
        (4, {"sync": "asp", "dp": 4}, "dp 4 does not fit 4 ranks of which 1 serve: "
         "start it with mpirun -n 5"),
        (4, {"servers": 1, "slow_rank": "3:2"}, "slow_rank '3:2': the ranks that compute are 0 "),
        (4, {"servers": 1, "allreduce": "ring"}, "allreduce with 1 server .sync bsp.: allreduce"),
        (4, {"servers": 2, "bucket_mb": 1.0}, "bucket_mb with 2 servers .sync bsp.: bucket_mb"),
        (4, {"servers": 1, "overlap": False}, "overlap with 1 server .sync bsp.: overlap"),
        (4, {"sync": "asp", "verify": True}, "verify with 1 server .sync asp.: verify"),
        (4, {"sync": "asp", "device": "cuda"}, "device cuda with 4 ranks"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(ranks: int, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        plan.check(Config(**options), ranks)


@pytest.mark.parametrize("options", [{"dp": 3}, {"sync": "ssp", "staleness": 4}, {"jitter": "1:2"}])
def test_what_can_be_is_not(options: dict[str, Any]) -> None:
    plan.check(Config(servers=1, **options), 4)
