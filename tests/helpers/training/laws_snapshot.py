"""What a run keeps that goes on from a snapshot, in the same process: functions of a Comm."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.once import once
from helpers.sample import one_in
from helpers.training.laws_resume import OPTIMIZERS, build
from helpers.training.pipelined import BOUND, distance, same_on_all

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.model.whole import whole_optimizer

Options = Mapping[str, Any]
State = dict[str, np.ndarray]
STEPS = 8
MIDDLE = 4  # of the second epoch, which has the steps 4, 5 and 6
EPOCH = 3
COMMON: Options = {
    "data": "synthetic:1x8x8:10:90",  # batches of 30, 30 and 12 samples
    "batch_size": 30,
    "micro_batches": 2,
    "steps": STEPS,
    "epochs": 9,
    "dtype": "float64",
}


class Row(NamedTuple):
    """A layout, and the numbers of ranks that it is for: 3 as processes, which take longer."""

    options: Options
    ranks: Sequence[int]
    snapshot_at: int = MIDDLE


RING = {"allreduce": "ring"}
TABLE = tomllib.loads(Path(__file__).with_name("snapshot_layouts.toml").read_text(encoding="utf-8"))
LAYOUTS = [Row(**row) for row in TABLE["rows"]]


def rows(p: int) -> list[Row]:
    """Those for p ranks."""
    return [row for row in LAYOUTS if p in row.ranks]


class Ran(NamedTuple):
    """What a run was, from where it began; the same on all ranks, but the model on the first."""

    steps: dict[int, float]  # the loss of each
    epochs: list[Event]
    done: Event
    model: State
    optimizer: State


Act = Callable[[Trainer], object]


class Watch:
    """Acts once, after a step, and notes what a run is."""

    def __init__(self, act: Act, at: int) -> None:
        self.act, self.at = act, at
        self.steps: dict[int, float] = {}
        self.epochs: list[Event] = []

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if trainer.arrangement.steps_together:  # else a rank learns of them when others tell it
            self.steps[event["step"]] = event["loss"]
            if event["step"] == self.at:
                self.act(trainer)

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        names = ("epoch", "loss", "test_loss", "accuracy", "steps", "skipped_steps", "lr")
        scale = event.get("loss_scale", 1.0)
        self.epochs.append({name: event[name] for name in names} | {"loss_scale": scale})
        if not trainer.arrangement.steps_together and event["steps"] == self.at:
            self.act(trainer)
        self.model = {name: a.copy() for name, a in trainer.strategy.full_state}
        arrays = whole_optimizer(trainer.optimizer, trainer.model, trainer.comm)
        self.optimizer = dict(arrays.on_all_ranks())


def trainer_of(comm: Comm, *callbacks: object, **options: Any) -> Trainer:
    config = Config(**{**COMMON, **options})
    return Trainer(config, build, comm=comm, callbacks=callbacks)


def nothing(trainer: Trainer) -> None: ...


def run(comm: Comm, options: Options, act: Act = nothing, at: int = MIDDLE) -> Ran:
    """A whole run, in which something happens after a step."""
    watch = Watch(act, at)
    return fitted(trainer_of(comm, watch, **options), watch)


def go_on(comm: Comm, snapshot: Snapshot, options: Options) -> Ran:
    """The rest of a run, in another Trainer."""
    watch = Watch(nothing, STEPS)
    trainer = trainer_of(comm, watch, **options)
    trainer.restore(snapshot)
    return fitted(trainer, watch)


def fitted(trainer: Trainer, watch: Watch) -> Ran:
    """The run of a Trainer that has this callback."""
    done = trainer.fit(NullReport())
    assert same_on_all(trainer.comm, done["parameters_sha256"])
    trainer.close()
    return Ran(watch.steps, watch.epochs, done, watch.model, watch.optimizer)


def taken(comm: Comm, options: Options, at: int = MIDDLE) -> Snapshot:
    """A snapshot of a run that then goes on, which does not change it."""
    found: list[Snapshot] = []
    run(comm, options, lambda trainer: found.append(trainer.snapshot()), at)
    return found[0]


@once
def _one_rank(options: tuple[tuple[str, Any], ...]) -> tuple[Ran, Snapshot]:
    found: list[Snapshot] = []
    ran = run(comm_self(), dict(options), lambda trainer: found.append(trainer.snapshot()))
    return ran, found[0]


def one_rank(options: Options) -> Ran:
    """The same on one rank, once a process."""
    return _one_rank(tuple(sorted(options.items())))[0]


def taken_alone(options: Options) -> Snapshot:
    """Of that run, in the middle."""
    return _one_rank(tuple(sorted(options.items())))[1]


def same(found: Ran, wanted: Ran, since: int = 0) -> None:
    """The same bits of everything, since a step."""
    assert found.steps == {step: loss for step, loss in wanted.steps.items() if step > since}
    rest = wanted.epochs[-len(found.epochs) :]
    if wanted.steps:
        assert found.epochs == rest
    else:  # sums of what servers have told it, and when
        all_near(found.epochs, rest)
    assert found.done["parameters_sha256"] == wanted.done["parameters_sha256"]
    for a, b in ((found.model, wanted.model), (found.optimizer, wanted.optimizer)):
        assert list(a) in ([], list(b))
        assert all(a[name].tobytes() == b[name].tobytes() for name in a)


def near(found: Ran, wanted: Ran) -> None:
    """The same within the bound; also the epoch in which the ranks were arranged anew."""
    assert not found.model or distance(found.model, wanted.model) < BOUND
    assert distance(found.optimizer, wanted.optimizer) < BOUND
    all_near(found.epochs, wanted.epochs[-len(found.epochs) :])


def all_near(found: list[Event], wanted: list[Event]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a == pytest.approx(b, rel=BOUND)


def same_rules(a: Row, b: Row) -> bool:
    """Whether one rank would train the same for both: not by slices, in 16 bits, nor by delayed
    updates."""
    own = ("reproducible", "schedule", "micro_batches", "dtype")
    return all(a.options.get(name) == b.options.get(name) for name in own)


def cases(p: int) -> list[tuple[Row, Options]]:
    """Each row with the options of some optimizer."""
    found = rows(p)
    return [(row, OPTIMIZERS[i % len(OPTIMIZERS)]) for i, row in enumerate(found)]


# ---- the laws


def the_same_ranks_go_on_with_the_same_bits(comm: Comm) -> None:
    """In the same Trainer and in another one: losses, epochs, parameters and optimizer."""
    for row, optimizer in one_in(3, cases(comm.size), "same ranks"):
        options = {**optimizer, **row.options}
        snapshot: list[Snapshot] = []

        def take(trainer: Trainer, into: list[Snapshot] = snapshot) -> None:
            into.append(trainer.snapshot())

        wanted = run(comm, options, take, row.snapshot_at)
        same(run(comm, options, Trainer.rearrange, row.snapshot_at), wanted)
        same(go_on(comm, snapshot[0], options), wanted, row.snapshot_at)


def other_layouts_go_on_as_one_rank_would(comm: Comm) -> None:
    """Each from another one, while the epoch runs on."""
    found = [row for row in rows(comm.size) if "schedule" not in row.options]
    found = [row for row in found if same_rules(row, found[0])]
    for i, row in one_in(3, enumerate(found), "other layouts"):
        optimizer, before = OPTIMIZERS[i % len(OPTIMIZERS)], found[i - 1]
        plain = dict.fromkeys({*before.options, *row.options})
        back = {name: getattr(Config(), name) for name in plain}

        def act(trainer: Trainer, options: Options = back | dict(row.options)) -> None:
            trainer.rearrange(**options)

        options = {**optimizer, **before.options}
        near(run(comm, options, act, before.snapshot_at), one_rank(optimizer))


def one_rank_goes_on_for_all_and_all_for_one(comm: Comm) -> None:
    """Where each rank has the whole model: what a rank has alone is enough."""
    optimizer = OPTIMIZERS[1]
    wanted = one_rank(optimizer)
    snapshot = taken_alone(optimizer)
    for row in one_in(2, rows(comm.size), "one rank"):
        if same_rules(row, Row({}, ())) and row.snapshot_at == MIDDLE:
            near(go_on(comm, snapshot, {**optimizer, **row.options}), wanted)
    alone = go_on(comm_self(), taken(comm, {**optimizer, **RING}), optimizer)
    near(alone, wanted)


def fewer_ranks_go_on(comm: Comm) -> None:
    """The last one leaves; of what it had, others have copies."""
    optimizer = OPTIMIZERS[0]
    snapshot = taken(comm, {**optimizer, **RING})
    rest = comm.split(0 if comm.rank < max(1, comm.size - 1) else None)
    if rest is not None:
        near(go_on(rest, snapshot, {**optimizer, "allreduce": "shared"}), one_rank(optimizer))
        rest.free()


def reproducible_keeps_its_bits(comm: Comm) -> None:
    """On other ranks."""
    options = {**OPTIMIZERS[1], "reproducible": True, "slices": 8, "micro_batches": 1}
    wanted = one_rank(options)
    snapshot = taken(comm, options)
    same(go_on(comm_self(), snapshot, options), wanted, MIDDLE)
    same(go_on(comm, taken_alone(options), options), wanted, MIDDLE)


def workers_keep_their_places(comm: Comm) -> None:
    """Each worker of ssp goes on where it is in its data; otherwise where the run is."""
    if comm.size < 2:
        return
    places = []

    def act(trainer: Trainer) -> None:
        before = trainer.strategy.position
        trainer.rearrange()
        after = trainer.strategy.position
        assert (before is None) == (comm.rank == comm.size - 1)  # the server
        assert after == before
        trainer.rearrange(servers=1, sync="bsp", staleness=0)
        assert trainer.strategy.position is None
        trainer.rearrange(servers=0, sync="ssp", staleness=2)
        assert trainer.strategy.position is None
        places.append(after)

    options = {**OPTIMIZERS[0], "sync": "ssp", "staleness": 2}
    run(comm, options, act, EPOCH)
    assert len(places) == 1
