"""A run that goes on from a snapshot in the same process, on threads; snapshots that do not fit,
layouts that cannot be opened, and runs that are over."""

import gc
import re
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
from helpers.comm.counted import Counted
from helpers.datafiles import refused
from helpers.training import laws_snapshot
from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import (
    COMMON,
    LAYOUTS,
    RING,
    STEPS,
    go_on,
    near,
    one_rank,
    rows,
    run,
    same,
    same_rules,
    taken,
    trainer_of,
)
from helpers.training.pipelined import digits
from helpers.training.unusual_models import spoilt

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, OtherRankError, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.checkpoints.snapshot import Snapshot, joined
from nnmpi.io.output import NullReport
from nnmpi.metrics import Sums
from nnmpi.run.session import Session

ADAM = OPTIMIZERS[1]


# ---- other numbers of ranks


LONG = [pytest.param(*ranks, marks=pytest.mark.long) for ranks in ((2, 3), (4, 1))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("before", "after"), [(3, 2), *LONG, (1, 4)])
def test_any_ranks_that_have_all_of_it_go_on(before: int, after: int) -> None:
    """Each new rank has what some of the old ones had, or nothing."""
    wanted = one_rank(ADAM)
    ways = rows(after)
    for k, row in enumerate(row for row in rows(before) if same_rules(row, LAYOUTS[0])):
        options = {**ADAM, **row.options}
        found = threads.run(before, taken, options, row.snapshot_at)
        next_way = ways[k % len(ways)]
        way = next_way.options if same_rules(next_way, LAYOUTS[0]) else {}

        def rank(
            comm: Comm, found: list[Snapshot] = found, way: laws_snapshot.Options = way
        ) -> None:
            own = found[comm.rank :: comm.size] or [found[0]._replace(arrays=(), positions=())]
            near(go_on(comm, joined(own), {**ADAM, **way}), wanted)

        threads.run(after, rank)


PP2 = {"pp": 2, "cut": "5"}
DP2_PP2 = {"dp": 2, **PP2, **RING}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("before", "groups", "after"),
    [
        (DP2_PP2, [(0, 1), (2, 3)], PP2),
        (DP2_PP2, [(0, 1), (2, 3)], RING),
        (RING, [(0, 1), ()], RING),
    ],
    ids=str,
)
def test_a_rank_may_bring_several_copies(
    before: dict[str, Any], groups: list[tuple[int, ...]], after: dict[str, Any]
) -> None:
    """And others none, though there are as many copies as ranks."""
    found = threads.run(sum(map(len, groups)), taken, {**ADAM, **before})

    def rank(comm: Comm) -> None:
        own = [found[i] for i in groups[comm.rank]]
        snapshot = joined(own) if own else found[0]._replace(arrays=(), positions=())
        near(go_on(comm, snapshot, {**ADAM, **after}), one_rank(ADAM))

    threads.run(2, rank)


def test_of_copies_that_differ_all_ranks_get_that_of_the_first() -> None:
    """As the running statistics of workers differ that each went at its own pace."""
    name = "1.running_mean"

    def rank(comm: Comm) -> list[float]:
        snapshot = taken(comm, {**ADAM, **RING})
        (copy,) = (x.elements() for x in snapshot.arrays if x.name == name)
        copy += comm.rank
        trainer = trainer_of(comm, **ADAM, **RING)
        trainer.restore(snapshot)
        restored: list[float] = trainer.model.state_dict()[name].tolist()
        trainer.close()
        return restored if comm.rank else copy.tolist()

    wanted, found = threads.run(2, rank)
    assert found == wanted


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"allreduce": "shared"}, {**RING, "zero": 2}], ids=str)
def test_nodes_that_share_memory(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            trainer.rearrange(**{"zero": 0, **options})

        near(run(comm, {**ADAM, "allreduce": "hierarchical"}, act), one_rank(ADAM))
        near(run(comm, {**ADAM, **options}, Trainer.rearrange), one_rank(ADAM))

    threads.run(4, rank, per_node=2)


# ---- counters, and where in a run it is taken


class Takes(laws_snapshot.Watch):
    """A snapshot after every step."""

    def on_step(self, trainer: Trainer, event: dict[str, Any]) -> None:
        super().on_step(trainer, event)
        self.snapshots = [*getattr(self, "snapshots", ()), trainer.snapshot()]


@pytest.fixture(scope="module")
def noted() -> list[tuple[laws_snapshot.Ran, list[Snapshot]]]:
    """Of each rank; snapshots change nothing."""

    def rank(comm: Comm) -> tuple[laws_snapshot.Ran, list[Snapshot]]:
        watch = Takes(laws_snapshot.nothing, STEPS)
        ran = laws_snapshot.fitted(trainer_of(comm, watch, **ADAM, **RING), watch)
        same(ran, run(comm, {**ADAM, **RING}))
        return ran, watch.snapshots

    return threads.run(2, rank)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_after_any_step(noted: list[tuple[laws_snapshot.Ran, list[Snapshot]]], at: int) -> None:
    """Also after the last one of an epoch, which is then evaluated, and of the run."""

    def rank(comm: Comm) -> None:
        wanted, snapshots = noted[comm.rank]
        options = {**ADAM, **RING}
        same(run(comm, options, Trainer.rearrange, at), wanted)
        same(go_on(comm, snapshots[at - 1], options), wanted, at)

    threads.run(2, rank)


def test_before_the_first_step_and_between_epochs() -> None:
    class Watch(laws_snapshot.Watch):
        def on_epoch(self, trainer: Trainer, event: dict[str, Any]) -> None:
            super().on_epoch(trainer, event)
            if event["steps"] < STEPS:
                trainer.rearrange()

    def rank(comm: Comm) -> None:
        options = {**ADAM, **RING, "zero": 1}
        watch = Watch(laws_snapshot.nothing, STEPS)
        trainer = trainer_of(comm, watch, **options)
        trainer.rearrange()
        same(laws_snapshot.fitted(trainer, watch), run(comm, options))

    threads.run(2, rank)


def test_skipped_steps_are_counted_on() -> None:
    class Anew:
        def on_step(self, trainer: Trainer, event: dict[str, Any]) -> None:
            trainer.rearrange()

    def event(comm: Comm, *callbacks: object) -> dict[str, Any]:
        config = Config(dtype="float64", epochs=3, batch_size=24, **RING)
        return Trainer(config, spoilt, digits(), comm, callbacks=callbacks).fit(NullReport())

    def rank(comm: Comm) -> None:
        wanted, found = event(comm), event(comm, Anew())
        assert found["skipped_steps"] == wanted["skipped_steps"] == 3
        assert found["parameters_sha256"] == wanted["parameters_sha256"]

    threads.run(2, rank)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_verify_goes_on(dtype: str) -> None:
    def rank(comm: Comm) -> None:
        options = {**ADAM, "verify": True, "allreduce": "ring", "dtype": dtype}
        assert run(comm, options, Trainer.rearrange).done["event"] == "done"

        def act(trainer: Trainer) -> None:
            trainer.rearrange(verify=True, allreduce="ring", zero=1)

        assert run(comm, {**ADAM, "dtype": dtype}, act).done["event"] == "done"

    threads.run(2, rank)


# ---- what does not fit


def fails(comm: Comm, words: str, act: Callable[[], object]) -> None:
    with pytest.raises((ValueError, OtherRankError), match=re.escape(words)):
        act()


def test_what_cannot_be_is_refused_and_the_run_goes_on() -> None:
    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            fails(comm, "'lr' cannot be changed in a run", lambda: trainer.rearrange(lr=1.0))
            fails(comm, "'no' cannot be changed in a run", lambda: trainer.rearrange(no=1))
            fails(comm, "dp 7 does not fit", lambda: trainer.rearrange(dp=7))
            fails(comm, "zero 5 is not one of", lambda: trainer.rearrange(zero=5))
            different = lambda: trainer.rearrange(overlap=comm.rank == 0)  # noqa: E731
            fails(comm, "rank 1 differs from rank 0 in overlap", different)
            other = trainer.snapshot()._replace(config=Config(**{**COMMON, "seed": 3}))
            fails(comm, "is of a run with", lambda: trainer.restore(other))

        same(run(comm, ADAM, act), run(comm, ADAM))

    threads.run(2, rank)


def test_a_layout_that_cannot_be_opened_leaves_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    made, init = WeakSet[Session](), Session.__init__

    def noted(session: Session, *args: Any) -> None:
        made.add(session)
        init(session, *args)

    monkeypatch.setattr(Session, "__init__", noted)

    def rank(comm: Comm) -> None:
        with trainer_of(comm, **ADAM) as trainer:
            fails(comm, "there is no layer 99", lambda: trainer.rearrange(pp=2, cut="99"))
            comm.barrier()
            assert len(made) == comm.size
            comm.barrier()

    gc.disable()
    try:
        threads.run(2, rank)
    finally:
        gc.enable()


def test_snapshots_that_do_not_fit_are_refused_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)

    def rank(comm: Comm) -> None:
        options = {**ADAM, **RING, "zero": 1}
        trainer = trainer_of(comm, **options)
        start = trainer.snapshot()
        lacks = start._replace(arrays=() if comm.rank else start.arrays)
        fails(comm, "no rank has element", lambda: trainer.restore(lacks))
        later = start._replace(state=start.state._replace(step=comm.rank))
        fails(comm, "differs from rank 0 in the snapshot", lambda: trainer.restore(later))
        some = start._replace(measured={"allreduce": "ring"} if comm.rank else {})
        fails(comm, "differs from rank 0 in the snapshot", lambda: trainer.restore(some))
        trainer.restore(start)
        assert trainer.fit(NullReport())["event"] == "done"
        trainer.close()

    threads.run(2, rank)
    assert not counted.left


def test_a_run_that_is_over() -> None:
    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, **ADAM)
        trainer.fit(NullReport())
        trainer.close()
        with refused("this Trainer is closed, by close() or because its run failed: call snapshot"):
            trainer.snapshot()
        ended = taken(comm_self(), ADAM, STEPS)._replace(epoch=Sums())
        trainer.restore(ended)
        with refused(f"the snapshot is of step {STEPS}", f"ends after {STEPS} steps"):
            trainer.fit(NullReport())
        trainer.close()

    threads.run(2, rank)
