"""What a run reports within epochs: steps (--log-every) and evaluations (--evaluate-every)."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import runs
from helpers.runs import but_steps, rows
from helpers.training.acts import GoesBack
from helpers.training.pipelined import Heard

from nnmpi import Trainer
from nnmpi.addons.checkpoints.manifest import read_outcome
from nnmpi.addons.checkpoints.write import WriteResult
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event
from nnmpi.run import loop

OPTIONS: dict[str, Any] = {"batch_size": 16, "lr": 0.05}
STEPS = 8  # of 56 samples: the last batch of an epoch has half as many as the others

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    **runs.LAYOUTS,
    "clipped": (3, {"allreduce": "ring", "clip_norm": 0.1, "micro_batches": 2}),
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


def each_step(losses: list[float]) -> object:
    """A callback that keeps the loss of each step."""
    return SimpleNamespace(on_step=lambda trainer, event: losses.append(event["loss"]))


def run(comm: Comm, *callbacks: object, **options: Any) -> list[Event]:
    """The events of a run."""
    heard, data = Heard(), options.pop("data", None)
    trainer = runs.trainer_of(comm, {**OPTIONS, **options}, data=data, callbacks=callbacks)
    for each in comm.comms_of_rank:  # a pipeline is cut by times, as texts that differ in length
        each.ledger.reset()
    trainer.fit(heard)
    return heard.events


def those(kind: str, events: list[Event]) -> list[Event]:
    """The events of a kind."""
    return [event for event in events if event["event"] == kind]


steps_of, evaluations_of = partial(those, "step"), partial(those, "evaluation")


# ---- steps


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_reports_the_loss_and_the_norm_of_one_rank(
    ranks: int, options: dict[str, Any]
) -> None:
    losses, clip = list[float](), {"clip_norm": options.get("clip_norm")}
    of_one = run(comm_self(), each_step(losses), log_every=1, **clip)
    wanted, epochs = steps_of(of_one), those("epoch", of_one)
    assert [event["loss"] for event in wanted] == losses
    assert [event["step"] for event in wanted] == [*range(1, STEPS + 1)]
    assert [event["epoch"] for event in wanted] == [k / 4 for k in range(1, STEPS + 1)]
    for events in threads.run(ranks, lambda comm: run(comm, log_every=1, **options)):
        for event, one in zip(steps_of(events), wanted, strict=True):
            for key in ("step", "steps", "epoch", "lr"):
                assert event[key] == one[key]
            for key in ("loss", "gradient_norm"):
                assert event[key] == pytest.approx(one[key], rel=1e-10)
        norms = [epoch["mean_gradient_norm"] for epoch in those("epoch", events)]
        assert norms == pytest.approx([epoch["mean_gradient_norm"] for epoch in epochs], rel=1e-10)


def test_a_step_is_reported_with_means_over_those_since_the_last_one() -> None:
    """The first one alone, as a sign that all is well; a batch of 8 counts as half of one of 16."""
    losses = list[float]()
    events = steps_of(run(comm_self(), each_step(losses), log_every=3))
    assert [event["step"] for event in events] == [1, 3, 6]
    means = [losses[0], np.mean(losses[1:3]), np.average(losses[3:6], weights=[8, 16, 16])]
    assert [event["loss"] for event in events] == pytest.approx(means, rel=1e-12)
    assert "samples_per_second" not in events[0]  # no step has been measured
    assert min(event["samples_per_second"] for event in events[1:]) > 0
    assert steps_of(run(comm_self(), log_every=0)) == []


@pytest.mark.parametrize(("steps", "wanted"), [(8, 8), (599, 300), (600, 201)])
def test_a_run_has_about_two_hundred_events_of_steps(steps: int, wanted: int) -> None:
    told = Told()
    x, y = rows(100)
    data, options = (x, y, x[:1], y[:1]), {"steps": steps, "epochs": steps, "batch_size": 1}
    trainer = runs.trainer_of(comm_self(), options, data=data, callbacks=[told])
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
    of_ranks = threads.run(ranks, lambda comm: run(comm, log_every=1, **options))
    events = steps_of(of_ranks[0])
    assert len(events) >= STEPS - 1  # the last one may be that of an epoch's end
    assert all(np.isfinite(event["loss"]) and event["lr"] >= 0 for event in events)
    for told in of_ranks:
        assert not any({"gradient_norm", "mean_gradient_norm"} & event.keys() for event in told)
        assert all("lr" in event for event in those("epoch", told))


# ---- evaluations


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("ranks", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_run_is_evaluated_within_epochs_and_at_their_ends(
    ranks: int, options: dict[str, Any]
) -> None:
    """Once at each: step 4 ends an epoch."""

    def on_rank(comm: Comm) -> None:
        told, losses = Told(), list[float]()

        def evaluates(trainer: Trainer, event: Event) -> None:
            losses.append(trainer.evaluate().mean_loss)

        each = SimpleNamespace(on_step=evaluates)
        events = run(comm, told, each, evaluate_every=2, **options)
        within = evaluations_of(events)
        assert [(event["step"], event["epoch"]) for event in within] == [(2, 0.5), (6, 1.5)]
        assert [event["test_loss"] for event in within] == [losses[1], losses[5]]
        assert all("accuracy" in event and "loss" not in event for event in within)
        assert [event["step"] for event in told.evaluated] == [2, 4, 6, 8]
        assert [event["test_loss"] for event in told.evaluated] == losses[1::2]
        assert [event["steps"] for event in told.epochs] == [4, 8]
        kinds = [e["event"] for e in but_steps(events) if e["event"] != "verify"]
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


@pytest.mark.parametrize("how", ["stop", "suspend"])
def test_a_request_after_that_of_an_evaluation_ends_the_run_with_the_next_step(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal; in the last epoch the run is complete."""
    requests, end = loop.requests, {"stop": "stopped", "suspend": "suspended"}[how]

    def asked(at: int, trainer: Any) -> list[bool]:
        found = requests(trainer)
        if (trainer.step, trainer.comm.rank) == (at, trainer.comm.size - 1):
            getattr(trainer, how)()
        return found

    for ranks in (1, 3):
        for at, wanted in ((4, (end, 5)), (8, ("done", 8))):
            monkeypatch.setattr(loop, "requests", partial(asked, at))
            saved = {"checkpoint_dir": str(tmp_path / f"{ranks} {at}")} if how == "suspend" else {}
            for events in threads.run(ranks, partial(run, **saved)):
                assert (events[-1]["event"], events[-1]["steps"]) == wanted


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


# ---- runs that go back


def test_steps_are_reported_again_after_a_restore() -> None:
    """Their means begin anew, and those of norms have no steps that it has undone."""
    events = run(comm_self(), GoesBack(2, 5), log_every=2)
    assert [event["step"] for event in steps_of(events)] == [1, 2, 4, 3, 4, 6, 8]
    plain, again = (
        [event["mean_gradient_norm"] for event in those("epoch", some)]
        for some in (run(comm_self()), events)
    )
    assert again == [plain[0], *plain]
