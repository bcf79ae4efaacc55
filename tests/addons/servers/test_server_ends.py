"""How runs with a parameter server end: refused, stopped, diverged."""

import copy
from typing import Any

import numpy as np
import pytest
from helpers import turns
from helpers.training.laws_training import Lost, nothing_moves
from helpers.training.laws_training import clouds as few
from helpers.training.pipelined import Noted
from helpers.training.served import IRIS, Ended, check_ranks_agree, clouds, fit

import nnmpi
from nnmpi import Config, Trainer, nn, optim
from nnmpi.addons.servers.text import staleness
from nnmpi.comm import Comm
from nnmpi.io.output import NullReport
from nnmpi.nn.models import mlp
from nnmpi.parallel import strategies
from nnmpi.run.end import DivergedError


@pytest.mark.parametrize("stopper", range(4))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_any_rank_may_stop_in_the_middle_of_an_epoch(sync: str, stopper: int) -> None:
    def rank(comm: Comm) -> Ended:
        config = Config(**IRIS | {"batch_size": 4}, epochs=1000, servers=2, sync=sync)
        trainer = Trainer(config, comm=comm)
        if comm.rank == stopper >= 2:
            trainer.stop()  # a server reports steps at the end of an epoch only
        stops = Noted(lambda step: step >= 3 and comm.rank == stopper and trainer.stop())
        return Ended(trainer.fit(stops), trainer.model.state_dict())

    ended = turns.run(4, rank)
    check_ranks_agree(ended)
    assert ended[0].result["event"] == "stopped"
    assert 0 < ended[0].result["steps"] < 30 or sync == "asp"
    assert ended[0].result["steps"] < 1000


@pytest.mark.parametrize("options", [{"sync": "bsp"}, {"sync": "asp"}], ids=str)
def test_divergence_ends_all_ranks_with_the_same_error(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> str:
        config = Config(**IRIS, servers=2, optimizer="sgd", lr=1e30, **options)
        with pytest.raises(DivergedError) as caught:
            fit(comm, config)
        return str(caught.value)

    assert all("the loss became" in text for text in turns.run(5, rank))


class Steep(nn.Module):
    """Its scores are finite, and one of its gradients is not."""

    def __init__(self) -> None:
        self.net, self.steep = mlp(6, 8, 3), nn.Parameter(np.zeros(3, "float32"))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return self.net(x) + self.steep * 1e30


@pytest.mark.parametrize(("sync", "skipped"), [("bsp", 6), ("asp", 12)])
def test_updates_that_are_not_finite_are_skipped_and_counted(sync: str, skipped: int) -> None:
    def rank(comm: Comm) -> tuple[Ended, int]:
        trainer = Trainer(
            Config(batch_size=40, epochs=1, sync=sync, servers=2), Steep, clouds(240), comm=comm
        )
        before = copy.deepcopy(trainer.model.state_dict())
        ended = Ended(trainer.fit(NullReport()), trainer.model.state_dict())
        for name, array in before.items():
            np.testing.assert_array_equal(ended.state[name], array)
        return ended, ended.result["skipped_steps"]

    found = turns.run(4, rank)
    check_ranks_agree([ended for ended, _ in found])
    assert [n for _, n in found] == [skipped] * 4


@pytest.mark.parametrize("options", [{"sync": "bsp"}, {"sync": "asp"}], ids=str)
def test_a_loss_that_is_not_finite_changes_nothing_even_if_its_gradient_is(
    options: dict[str, Any],
) -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(batch_size=40, servers=1, **options), Lost, few(), comm)
        nothing_moves(trainer)

    turns.run(3, rank)


def test_after_a_run_an_optimizer_updates_the_whole_model_on_every_rank() -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(**IRIS, servers=1, steps=2), comm=comm)
        trainer.fit(NullReport())
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.close()
        for p in trainer.model.parameters():
            assert p.grad is None
            p.grad = np.ones(p.shape, p.data.dtype)
        optim.SGD(trainer.model.parameters(), 0.5).step()
        for name, array in trainer.model.state_dict().items():
            np.testing.assert_allclose(array, before[name] - 0.5, rtol=0, atol=1e-6)

    turns.run(3, rank)


@pytest.mark.parametrize(
    ("ranks", "options", "says"),
    [
        (1, {"sync": "asp"}, "sync asp with 1 server needs at least 2 ranks, got 1: "
         "start it with mpirun -n 2 or more"),
        (3, {"servers": 3}, "sync bsp with 3 servers needs at least 4 ranks, got 3: "
         "start it with mpirun -n 4 or more"),
        (1, {"servers": 2, "dp": 2}, "sync bsp with 2 servers needs at least 3 ranks, got 1: "),
        (4, {"sync": "asp", "dp": 4}, "dp 4 does not fit 4 ranks, 1 of them servers: "
         "start it with mpirun -n 5"),
        (4, {"servers": 1, "slow_rank": "3:2"}, "slow_rank '3:2': the ranks that compute are 0 "),
    ],
)  # fmt: skip
def test_numbers_of_ranks_that_do_not_fit_are_refused(
    ranks: int, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        strategies.check(Config(**options), ranks)


@pytest.mark.parametrize("options", [{"dp": 3}, {"sync": "ssp", "staleness": 4}, {"jitter": "1:2"}])
def test_numbers_of_ranks_that_fit_are_not(options: dict[str, Any]) -> None:
    strategies.check(Config(servers=1, **options), 4)


def test_the_line_on_stale_gradients_counts_those_of_all_workers() -> None:
    event = {"staleness": {"1": {"0": 1, "2": 2}, "2": {"3": 1}}}
    assert staleness(event) == "mean staleness 1.8, maximum 3"
    assert staleness({"staleness": {"1": {}}}) == ""
