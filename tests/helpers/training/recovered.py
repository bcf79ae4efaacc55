"""Runs of which ranks are killed, on threads, and what the ranks that are left tell of them."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from helpers import turns
from helpers.once import once
from helpers.training.pipelined import BOUND, MLP, Heard, contents, digits, distance

from nnmpi import Config, Trainer
from nnmpi.addons.recovery.run.recovery import Recovery
from nnmpi.comm import Comm, RankLost
from nnmpi.comm.transport.hub import Hub
from nnmpi.io.output import Event

Options = Mapping[str, Any]
COMMON: Options = {**MLP, "dtype": "float64", "epochs": 2, "steps": 6, "batch_size": 24}
RING: Options = {"allreduce": "ring"}

NOTHING_LEFT = "there is nothing to continue from"
"""What every rank says that is left where nobody has a part of the model, or of its state."""

PLAIN_MEAN: Options = {  # as one rank, whoever is left: replicas have no state of their own
    **RING, "sync": "local", "every": 1, "outer": "sgd", "outer_lr": 1.0,
    "clip_norm": None, "momentum": 0.0,
}  # fmt: skip

LAYOUTS: dict[str, tuple[int, Options]] = {
    "ring": (3, {**RING, "evaluate_every": 2}),
    "memory of a node": (3, {"allreduce": "shared", "optimizer": "adam", "lr": 0.01}),
    "two nodes": (4, {"allreduce": "shared"}),
    "pipelines": (4, {**RING, "dp": 2, "pp": 2, "micro_batches": 3, "log_every": 2}),
    "tensor parallel": (4, {**RING, "dp": 2, "tp": 2}),
    "norms over tp": (4, {**RING, "dp": 2, "tp": 2, "optimizer": "lamb", "lr": 0.01}),
    "norms of shards, backups": (
        3,
        {**RING, "zero": 1, "backup": 1, "optimizer": "lamb", "lr": 0.01},
    ),
    "slices": (3, {"reproducible": True, "slices": 4, "clip_norm": None}),
    "local steps": (4, PLAIN_MEAN),
    "compressed": (3, {**RING, "compress": "topk:1"}),
    "zero 1, backups": (3, {**RING, "zero": 1, "backup": 2}),
    "zero 3, backups": (3, {**RING, "zero": 3, "bucket_mb": 0.001, "backup": 2}),
    "one pipeline, backups": (3, {"pp": 3, "micro_batches": 3, "backup": 1}),
    "servers": (4, {"servers": 2, "model": "digits-cnn", "steps": 12, "epochs": 3}),
}
"""Ranks and options by name; in each of them no rank is needed, but servers, which are the last."""


def victims(name: str) -> int:
    """How many ranks of a layout, the first ones, may be killed."""
    ranks, layout = LAYOUTS[name]
    return ranks - layout.get("servers", 0)


class Reported:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.epochs: list[tuple[float, ...]] = []
        self.ends: list[int] = []

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.steps.append((event["step"], event["loss"]))

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        names = ("epoch", "steps", "loss", "test_loss", "accuracy", "mean_gradient_norm", "lr")
        self.epochs.append(tuple(event[name] for name in names if name in event))

    def on_end(self, trainer: Trainer, event: Event) -> None:
        self.ends.append(event["steps"])


class Left(NamedTuple):
    """What a rank that is left has of a run; without a state where another rank is lost later. A
    server hears of steps at the end of an epoch only."""

    told: Reported
    events: list[Event]
    last: Event
    is_spare: bool
    state: Mapping[str, Any] | None
    serves: bool = False

    @property
    def within_epochs(self) -> list[tuple[Any, ...]]:
        """Kind, step and loss of each event of a step, or of an evaluation."""
        kinds = {"step": "loss", "evaluation": "test_loss"}
        told = [event for event in self.events if event["event"] in kinds]
        return [(e["event"], e["step"], e[kinds[e["event"]]]) for e in told]

    @property
    def recovered(self) -> list[Event]:
        return [event for event in self.events if event["event"] == "recovered"]


def trained(comm: Comm, options: Options) -> Left:
    """A run on a few digits, unless the model is under "build" and data under "given"; other
    callbacks may be under "callbacks"."""
    heard, told = Heard(), Reported()
    others = ("build", "given", "callbacks")
    said = {name: value for name, value in options.items() if name not in others}
    build, given = options.get("build"), options.get("given", digits)()
    callbacks = [told, *options.get("callbacks", ())]
    trainer = Trainer(Config(**said), build, given, comm, callbacks=callbacks)
    assert isinstance(trainer.supervisor, Recovery) or not comm.fault_tolerant
    last, state = trainer.fit(heard), None
    with suppress(RankLost):  # after the run
        state = None if trainer.is_spare else contents(trainer)
    serves = not trainer.is_spare and trainer.strategy.layout.serves
    return Left(told, heard.events, last, trainer.is_spare, state, serves)


def trainer_of(comm: Comm, *callbacks: object, **options: Any) -> Trainer:
    """A Trainer of the same runs, which sum around a ring."""
    config = Config(**{**COMMON, **RING, **options})
    return Trainer(config, None, digits(), comm, callbacks=callbacks)


def run(name: str, killed: Mapping[int, int], **options: Any) -> list[Left | None]:
    """What is left of a run of which ranks are killed, each at an operation of that number."""
    ranks, layout = LAYOUTS[name]
    per_node = 2 if name == "two nodes" else None
    return run_of(ranks, {**COMMON, **layout, **options}, killed, per_node)


def run_of(
    ranks: int, options: Options, killed: Mapping[int, int], per_node: int | None = None
) -> list[Left | None]:
    """The same of a run with any options."""
    how: dict[str, Any] = {"per_node": per_node, "fault_tolerant": True, "killed": killed}
    return turns.run(ranks, trained, options, **how)


@once
def whole(name: str) -> tuple[Left, dict[int, int]]:
    """The run that nobody leaves, and the operations of each rank in it."""
    return counted(lambda: run(name, {}))


def counted(run: Callable[[], list[Left | None]]) -> tuple[Left, dict[int, int]]:
    """What the first rank has of a run, and the operations of each rank in it."""
    counts, plain = Counter[int](), Hub._begin

    def begin(hub: Hub, by: Any, *operation: Any) -> None:
        counts[by.job_rank] += 1
        plain(hub, by, *operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hub, "_begin", begin)
        found = run()[0]
    assert found is not None
    return found, dict(counts)


def check(left: list[Left | None], wanted: Left, bound: float = BOUND) -> None:
    """Every rank that works at the end has heard of each step, epoch and event once; one that was
    spare when the run began, by a loss, has not heard of that."""
    found = [one for one in left if one is not None]
    assert found
    for one in found:
        assert (one.last["event"], one.last["steps"]) == ("done", wanted.last["steps"])
        if one.is_spare:
            continue
        steps = [(s, pytest.approx(x, rel=bound)) for s, x in wanted.told.steps]
        assert one.told.steps == steps or one.serves
        told = [(*at, pytest.approx(x, rel=1e4 * bound)) for *at, x in wanted.within_epochs]
        assert one.within_epochs == told or one.serves
        assert one.told.ends == wanted.told.ends
        for ours, theirs in zip(one.told.epochs, wanted.told.epochs, strict=True):
            assert ours == pytest.approx(theirs, rel=1e4 * bound)
        kinds = Counter(event["event"] for event in one.events)
        assert (kinds["epoch"], kinds["done"]) == (len(wanted.told.epochs), 1)
        assert kinds["start"] == 1 or (one is not found[0] and not kinds["start"])
        if one.state is not None and wanted.state is not None:
            assert distance(one.state, wanted.state) < 100 * bound
