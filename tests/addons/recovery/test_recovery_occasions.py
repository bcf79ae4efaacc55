"""Ranks are killed while the model is saved, hosts whole, workers that have a pace of their own,
and ranks of modules with state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import recovered
from helpers.training.acts import KillsAt, kill_soon
from helpers.training.pipelined import BOUND, distance
from helpers.training.recovered import COMMON, RING

import nnmpi
from nnmpi import nn
from nnmpi.nn.place import StateArray
from nnmpi.run.session import Session

DP_TP = (4, {**RING, "dp": 2, "tp": 2})


@pytest.mark.parametrize(("victim", "later"), [(0, 0), (0, 4), (1, 2), (3, 1)])
def test_a_model_is_saved_whole_though_a_rank_is_lost_meanwhile(
    victim: int, later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first rank is lost, the next one writes."""
    ranks, layout = DP_TP
    path = tmp_path / "m"
    wanted = recovered.whole("tensor parallel")[0]
    write = Session.write

    def dies_in(session: Session, path: str | None) -> None:
        kill_soon(session.comm, victim, later)
        write(session, path)

    monkeypatch.setattr(Session, "write", dies_in)
    left = recovered.run_of(ranks, {**COMMON, **layout, "save": str(path)}, {})
    recovered.check(left, wanted)
    assert left[victim] is None
    assert [*tmp_path.iterdir()] == [path]
    assert distance(nnmpi.load(path), wanted.state) < 100 * BOUND


@pytest.mark.one_in(2)
@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize(
    "layout",
    [{"allreduce": "shared"}, {**RING, "zero": 1, "backup": 1}],
    ids=["memory of nodes", "zero 1, backups"],
)
def test_all_ranks_of_a_host_are_killed_at_once(layout: dict[str, Any], host: int) -> None:
    """What a host alone had is on another one."""
    options = {**COMMON, **layout}
    wanted = recovered.run_of(4, options, {}, per_node=2)[0]
    dies = [KillsAt(rank, 3, later=7) for rank in (2 * host, 2 * host + 1)]
    left = recovered.run_of(4, {**options, "callbacks": dies}, {}, per_node=2)
    recovered.check(left, wanted)
    for one in filter(None, left):
        assert one.recovered[-1]["lost"] == [2 * host, 2 * host + 1]


@pytest.mark.parametrize("sync", ["asp", "ssp"])
def test_the_other_workers_begin_the_epoch_again(sync: str) -> None:
    """With the values that it had begun with; positions of workers in it are dropped, said so."""
    served = {"servers": 1, "sync": sync, "staleness": int(sync == "ssp")}
    options = {**COMMON, **served, "clip_norm": None, "steps": None, "epochs": 4}
    wanted = recovered.run_of(2, options, {})[0]
    left, lost, server = recovered.run_of(3, {**options, "callbacks": [KillsAt(1, 1)]}, {})
    assert lost is None
    event = left.recovered[0]
    assert event["layout"].endswith(
        "workers begin at new positions in the data, since their number has changed"
    )
    begun = event["step"] // 5  # of five steps each
    assert left.told.epochs == server.told.epochs
    assert [one[:2] for one in left.told.epochs] == [(1, 5), (2, 10), (3, 15), (4, 20)]
    if begun == 0:  # from then on there is one worker, which no other one disturbs
        assert left.told.epochs == wanted.told.epochs
    assert event["step"] == 5 * begun


OF_MODULES: dict[str, Any] = {
    "batch_size": 24, "steps": 6, "seed": 3, "lr": 0.05, "optimizer": "adam", "check_copies": 0,
}  # fmt: skip


class Noisy(nn.Module):
    """Adds noise of a generator of its own."""

    def __init__(self) -> None:
        self.rng, self.shift = np.random.default_rng(7), nn.Parameter(np.zeros(1, "float32"))

    def forward(self, x: Any) -> Any:
        noise = self.rng.standard_normal(x.shape).astype("float32") if self.training else 0.0
        return x + noise + self.shift

    def state_arrays(self) -> list[StateArray]:
        return [nnmpi.generator_state("rng", self.rng)]


@pytest.mark.parametrize("lost", [0, 1])
def test_the_state_of_a_module_outlives_its_rank(lost: int) -> None:
    """With backups; each stage draws from a generator of its own."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Noisy(), nn.Linear(10, 10), Noisy())

    def losses(callbacks: list[object]) -> list[float]:
        options = {"model": "build", "build": build, "pp": 2, "cut": "3", "backup": 1}
        left = recovered.run_of(2, {**OF_MODULES, **options, "callbacks": callbacks}, {})
        return next([loss for _, loss in of.told.steps] for of in left if of is not None)

    np.testing.assert_allclose(losses([KillsAt(lost, 4)]), losses([]), rtol=1e-5)
