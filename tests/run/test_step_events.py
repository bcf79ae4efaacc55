"""What a run reports within epochs: steps (--log-every) and evaluations (--evaluate-every)."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import but_steps, rows, small
from helpers.training.laws_checkpoints import facts_of
from helpers.training.pipelined import Heard

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.checkpoints.manifest import read_outcome
from nnmpi.io.checkpoints.write import WriteResult
from nnmpi.io.output import Event

OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "dtype": "float64", "lr": 0.05}
STEPS = 8  # of 56 samples: the last batch of an epoch has half as many as the others

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "ring": (3, {"allreduce": "ring", "clip_norm": 0.1}),
    "shared": (2, {"allreduce": "shared", "micro_batches": 2}),
    "pipeline": (4, {"pp": 2, "micro_batches": 2}),
    "sharded layers": (4, {"tp": 2}),
    "zero 1": (2, {"zero": 1}),
    "zero 3": (2, {"zero": 3}),
    "slices": (2, {"reproducible": True, "slices": 4}),
}
OTHERS: dict[str, tuple[int, dict[str, Any]]] = {
    "local": (2, {"sync": "local", "every": 3}),
    "gossip": (3, {"sync": "gossip", "every": 2}),
    "fragments": (2, {"sync": "local", "every": 4, "fragments": 2, "apply_after": 1}),
}
SERVED: dict[str, tuple[int, dict[str, Any]]] = {
    "servers": (3, {"servers": 1}),
    "asp": (2, {"sync": "asp"}),
    "pipedream": (2, {"pp": 2, "schedule": "pipedream"}),
}


class Sent:
    """A callback that keeps the messages and bytes that each Comm of its rank has sent in training
    up to an epoch's end; it is not called after steps."""

    def __init__(self) -> None:
        self.sent = list[list[tuple[str, int, int]]]()

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        ledgers = [(comm.name, comm.ledger) for comm in trainer.comm.comms_of_rank]
        sums = [(name, sum(l.sent_messages), sum(l.sent_bytes)) for name, l in ledgers]
        self.sent.append(sorted(sums))


class Told:
    """A callback that keeps what it is told; it is not called after each step."""

    def __init__(self) -> None:
        self.logged, self.evaluated, self.epochs = list[Event](), list[Event](), list[Event]()

    def on_log(self, trainer: Trainer, event: Event) -> None:
        self.logged.append(event)

    def on_evaluate(self, trainer: Trainer, event: Event) -> None:
        self.evaluated.append(event)

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        self.epochs.append(event)


class EachStep:
    """A callback that keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses = list[float]()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(event["loss"])


def run(comm: Comm, *callbacks: object, **options: Any) -> list[Event]:
    """The events of a run."""
    heard = Heard()
    config = Config(**{**OPTIONS, **options})
    trainer = Trainer(config, small, rows(), comm, callbacks=callbacks)
    for each in comm.comms_of_rank:  # a pipeline is cut by times, as texts that differ in length
        each.ledger.reset()
    trainer.fit(heard)
    return heard.events


def steps_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "step"]


def evaluations_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "evaluation"]


# ---- steps


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_reports_the_loss_and_the_norm_of_one_rank(
    ranks: int, options: dict[str, Any]
) -> None:
    each = EachStep()
    clip = {"clip_norm": options.get("clip_norm")}
    wanted = steps_of(run(comm_self(), each, log_every=1, **clip))
    assert [event["loss"] for event in wanted] == each.losses
    assert [event["step"] for event in wanted] == [*range(1, STEPS + 1)]
    assert [event["epoch"] for event in wanted] == [k / 4 for k in range(1, STEPS + 1)]
    for events in threads.run(ranks, lambda comm: run(comm, log_every=1, **options)):
        for event, one in zip(steps_of(events), wanted, strict=True):
            for key in ("step", "steps", "epoch", "lr"):
                assert event[key] == one[key]
            for key in ("loss", "gradient_norm"):
                assert event[key] == pytest.approx(one[key], rel=1e-10)


def test_a_step_is_reported_with_means_over_those_since_the_last_one() -> None:
    """The first one alone, as a sign that all is well; a batch of 8 counts as half of one of 16."""
    each = EachStep()
    events = steps_of(run(comm_self(), each, log_every=3))
    assert [event["step"] for event in events] == [1, 3, 6]
    losses = each.losses
    means = [losses[0], np.mean(losses[1:3]), np.average(losses[3:6], weights=[8, 16, 16])]
    assert [event["loss"] for event in events] == pytest.approx(means, rel=1e-12)
    assert "samples_per_second" not in events[0]  # no step has been measured
    assert min(event["samples_per_second"] for event in events[1:]) > 0
    assert steps_of(run(comm_self(), log_every=0)) == []


@pytest.mark.parametrize(("steps", "wanted"), [(8, 8), (599, 300), (600, 201)])
def test_a_run_has_about_two_hundred_events_of_steps(steps: int, wanted: int) -> None:
    told = Told()
    x, y = rows(100)
    config = Config(steps=steps, epochs=steps, batch_size=1)
    trainer = Trainer(config, small, (x, y, x[:1], y[:1]), comm_self(), callbacks=[told])
    trainer.fit(Heard())
    assert len(told.logged) == wanted
    trainer.fit(Heard(), epochs=1)
    assert len(told.logged) == wanted + 100


@pytest.mark.parametrize(
    ("ranks", "options"), [*{**LAYOUTS, **OTHERS}.values()], ids=[*LAYOUTS, *OTHERS]
)
def test_events_of_steps_send_nothing_and_change_no_bit(
    ranks: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """On any Comm; evaluations send, and change no bit either."""

    def on_rank(comm: Comm, **given: Any) -> tuple[str, Any, int, int]:
        sent = Sent()
        events = run(comm, sent, **options, **given)
        said = len(steps_of(events)), len(evaluations_of(events))
        return events[-1]["parameters_sha256"], sent.sent, *said

    without, logged, evaluated = (
        threads.run(ranks, partial(on_rank, **given))
        for given in ({"log_every": 0}, {"log_every": 1}, {"log_every": 1, "evaluate_every": 3})
    )
    for (bits, sent, *none), one, other in zip(without, logged, evaluated, strict=True):
        assert none == [0, 0]
        assert (one[0], one[1], other[0]) == (bits, sent, bits)
        assert one[2] > 1
        assert other[3] > 0 or options.get("every") == 4  # rounds that end with epochs only


@pytest.mark.parametrize(("ranks", "options"), SERVED.values(), ids=SERVED)
def test_where_ranks_have_a_pace_of_their_own_steps_have_a_loss_and_no_norm(
    ranks: int, options: dict[str, Any]
) -> None:
    """That of all samples since the last event, on the first rank, which writes them."""

    events = steps_of(threads.run(ranks, lambda comm: run(comm, log_every=1, **options))[0])
    assert len(events) >= STEPS - 1  # the last one may be that of an epoch's end
    assert all(np.isfinite(event["loss"]) and event["lr"] >= 0 for event in events)
    assert not any("gradient_norm" in event for event in events)


# ---- evaluations


class Evaluates:
    """A callback that evaluates after each step."""

    def __init__(self) -> None:
        self.losses = list[float]()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(trainer.evaluate().mean_loss)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_run_is_evaluated_within_epochs_and_at_their_ends(
    ranks: int, options: dict[str, Any]
) -> None:
    """Once at each: step 4 ends an epoch."""

    def on_rank(comm: Comm) -> None:
        told, each = Told(), Evaluates()
        events = run(comm, told, each, evaluate_every=2, **options)
        within, losses = evaluations_of(events), each.losses
        assert [(event["step"], event["epoch"]) for event in within] == [(2, 0.5), (6, 1.5)]
        assert [event["test_loss"] for event in within] == [losses[1], losses[5]]
        assert all("accuracy" in event and "loss" not in event for event in within)
        assert [event["step"] for event in told.evaluated] == [2, 4, 6, 8]
        assert [event["test_loss"] for event in told.evaluated] == losses[1::2]
        assert [event["steps"] for event in told.epochs] == [4, 8]
        kinds = [event["event"] for event in but_steps(events)]
        assert kinds == ["start", *["evaluation", "epoch"] * 2, "done"]

    threads.run(ranks, on_rank)


@pytest.mark.parametrize(("ranks", "options"), OTHERS.values(), ids=OTHERS)
def test_rounds_that_pass_a_multiple_are_followed_by_an_evaluation(
    ranks: int, options: dict[str, Any]
) -> None:
    """A round of steps may end behind the step after which an evaluation is due."""

    def on_rank(comm: Comm) -> None:
        events = run(comm, evaluate_every=2, log_every=1, **options)
        ends = [0, *(event["step"] for event in events if event["event"] == "step")]
        due = [end for last, end in pairwise(ends) if end // 2 > last // 2 and end not in (4, 8)]
        assert [event["step"] for event in evaluations_of(events)] == due

    threads.run(ranks, on_rank)


class Stops:
    """A callback that ends the run, on the last rank, on an occasion of a step."""

    def __init__(self, occasion: str, at: int, how: str) -> None:
        self.at, self.how = at, how
        setattr(self, occasion, self.hear)

    def hear(self, trainer: Trainer, event: Event) -> None:
        if trainer.step == self.at and trainer.comm.rank == trainer.comm.size - 1:
            getattr(trainer, self.how)()


@pytest.mark.parametrize("how", ["stop", "suspend"])
@pytest.mark.parametrize("occasion", ["on_step", "on_log", "on_evaluate"])
def test_a_callback_stops_a_run_on_any_occasion(occasion: str, how: str, tmp_path: Path) -> None:
    """All ranks at once: after the same step as on one rank."""

    def on_rank(comm: Comm) -> tuple[list[Event], list[int]]:
        told, saved = Told(), {"checkpoint_dir": str(tmp_path / str(comm.size))}
        options = {"evaluate_every": 3, "log_every": 2, **(saved if how == "suspend" else {})}
        events = run(comm, Stops(occasion, 6, how), told, **options)
        return events, [event["step"] for event in told.evaluated]

    for ranks in (1, 3):
        for events, evaluated in threads.run(ranks, on_rank):
            end = "stopped" if how == "stop" else "suspended"
            assert (events[-1]["event"], events[-1]["steps"]) == (end, 6)
            assert evaluated == [3, 4, 6]  # step 6 is told of once, though the run ends there


class Breaks:
    """A callback that lets the run diverge from a step on."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_evaluate(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == self.at:
            for group in trainer.optimizer.param_groups:
                group["lr"] = 5.0


@pytest.mark.parametrize("save_every", [None, "1"])
def test_the_best_checkpoint_is_that_of_an_evaluation_within_an_epoch(
    tmp_path: Path, save_every: str | None
) -> None:
    """Also where a checkpoint is due after the same step by another option."""
    kept = {"checkpoint_dir": str(tmp_path), "keep": 1, "keep_best": "test_loss"}

    def on_rank(comm: Comm) -> list[Event]:
        told = Told()
        options = {**kept, "save_every": save_every, "evaluate_every": 3}
        run(comm, Breaks(6), told, **options)
        return told.evaluated

    evaluated = threads.run(2, on_rank)[0]
    best = min(evaluated, key=lambda event: event["test_loss"])
    assert best["step"] == 6
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-00000006",
        "step-00000008",
    ]
    assert read_outcome(tmp_path / "step-00000006").metrics["test_loss"] == best["test_loss"]


class KnowsFirst:
    """A callback as if one rank alone knew by now that a checkpoint was not written."""

    def on_evaluate(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == 6 and trainer.comm.rank == 0:
            trainer.checkpoints._report(WriteResult(4, Path("step-4"), 0, 0.0, "disk full"))


def test_all_ranks_write_the_next_evaluation_after_a_failed_write(tmp_path: Path) -> None:
    kept = {"checkpoint_dir": str(tmp_path), "keep": 9, "keep_best": "test_loss"}
    options = {**kept, "lr": 1e-30, "evaluate_every": 3}  # no evaluation is better
    threads.run(2, lambda comm: run(comm, KnowsFirst(), **options))
    assert sorted(path.name[-1] for path in tmp_path.glob("step-*")) == ["3", "6", "8"]


def test_settings_that_differ_after_an_evaluation_are_found(tmp_path: Path) -> None:
    class Differs:
        def on_evaluate(self, trainer: Trainer, event: Event) -> None:
            trainer.optimizer.lr = 0.1 * (1 + trainer.comm.rank)

    with pytest.raises(ArithmeticError, match="ranks 0 and 1 differ in lr"):
        threads.run(2, lambda comm: run(comm, Differs(), evaluate_every=2))


# ---- runs that go on


class Suspends:
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == self.at:
            trainer.suspend()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("at", [1, 2, 3, 5])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_log_has_each_step_and_evaluation_once(
    tmp_path: Path, at: int, ranks: int
) -> None:
    """With the bits of a run that was not interrupted, wherever a mean over steps was begun."""
    options = {"log_every": 3, "evaluate_every": 2, "allreduce": "ring"}
    whole, log = tmp_path / "whole", tmp_path / "log"
    saved = {"checkpoint_dir": str(tmp_path / "c"), "log": str(log)}

    def fit(comm: Comm, *callbacks: object, **more: Any) -> None:
        config = Config(**{**OPTIONS, **options, **more}, quiet=True)
        Trainer(config, small, rows(), comm, callbacks=callbacks).fit()

    threads.run(ranks, lambda comm: fit(comm, log=str(whole)))
    threads.run(ranks, lambda comm: fit(comm, Suspends(at), **saved))
    threads.run(ranks, lambda comm: fit(comm, resume=True, **saved))
    kinds = ("step", "evaluation", "epoch", "done")
    found, wanted = (
        [facts_of(e) for e in map(json.loads, path.read_text().splitlines()) if e["event"] in kinds]
        for path in (log, whole)
    )
    assert found == wanted
    assert [e["step"] for e in found if e["event"] == "step"] == [1, 3, 6]
    assert [e["step"] for e in found if e["event"] == "evaluation"] == [2, 6]


class GoesBackOnce:
    """After step 5 to step 2."""

    snapshots: tuple[Any, ...] | None = ()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == 2 and self.snapshots == ():
            self.snapshots = (trainer.snapshot(),)
        elif event["step"] == 5 and self.snapshots:
            trainer.restore(*self.snapshots)
            self.snapshots = None


def test_steps_are_reported_again_after_a_restore() -> None:
    """Their means begin anew."""
    events = steps_of(run(comm_self(), GoesBackOnce(), log_every=2))
    assert [event["step"] for event in events] == [1, 2, 4, 3, 4, 6, 8]


def test_a_mean_norm_has_no_steps_that_a_restore_has_undone() -> None:
    plain, again = (
        [event["mean_gradient_norm"] for event in events if event["event"] == "epoch"]
        for events in (run(comm_self()), run(comm_self(), GoesBackOnce()))
    )
    assert again == [plain[0], *plain]
