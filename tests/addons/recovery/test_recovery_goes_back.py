"""Ranks are killed while a run goes back to an earlier step, and runs that have to go back."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import turns
from helpers.training import recovered
from helpers.training.acts import GoesBack, KillsAt, SavesAt, kill_soon, rank_of
from helpers.training.pipelined import BOUND, distance
from helpers.training.recovered import COMMON, RING, trainer_of

from nnmpi import Config, Trainer, train
from nnmpi.addons.checkpoints.manifest import read_outcome
from nnmpi.addons.recovery.run.recovery import Recovery
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.hub import Hub
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event, Report
from nnmpi.run import trainer

PIPELINE = {**COMMON, "pp": 3, "micro_batches": 3, "backup": 3}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lost", [0, 2])
def test_values_are_of_the_step_that_is_said_where_a_rank_is_lost_in_restore(
    lost: int, is_sample: bool
) -> None:
    """Whichever version the others go on from, what comes of it is the same."""
    wanted, _ = recovered.whole("ring")
    for later in range(2, 120, 18 if is_sample else 6):

        def kills(trainer: Trainer, later: int = later) -> None:
            kill_soon(trainer.comm, lost, later)

        options = {**COMMON, **RING, "callbacks": [GoesBack(2, 4, first=kills)]}
        for one in filter(None, recovered.run_of(3, options, {})):
            assert (one.last["event"], one.last["steps"]) == ("done", 6)
            assert one.told.steps[-1] == pytest.approx(wanted.told.steps[-1], rel=BOUND)
            if one.state is not None:
                assert distance(one.state, wanted.state) < 100 * BOUND


@pytest.mark.parametrize(
    ("owner", "name"),
    [(trainer, "replace_session"), (Recovery, "opened")],
    ids=["before the new session", "after it"],
)
def test_steps_that_a_restore_has_undone_do_not_delay_a_stop(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is lost in the restore, when each rank has ended its old session."""

    def stops(trainer: Trainer, event: Event) -> None:
        if event["step"] == 3:
            trainer.stop()

    plain, heard = getattr(owner, name), GoesBack(2, 5, then=stops)

    def dies(*arguments: Any) -> None:
        comm: Comm = arguments[-1].comm  # of a Trainer, or of a Session
        rank = rank_of(comm)
        if rank == 2 and heard.is_back(rank):
            threads.kill(comm)
        plain(*arguments)

    monkeypatch.setattr(owner, name, dies)
    left = recovered.run_of(3, {**COMMON, **RING, "epochs": 4, "callbacks": [heard]}, {})
    assert left[2] is None
    for one in filter(None, left):
        assert [(e["step"], e["steps_again"]) for e in one.recovered] == [(2, 0)]
        assert (one.last["event"], one.last["steps"]) == ("stopped", 3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("saved", "step"), [(4, 4), (2, 3)])
def test_ranks_go_on_from_the_newest_of_backups_and_checkpoints(
    saved: int, step: int, tmp_path: Path
) -> None:
    callbacks = [SavesAt(saved, tmp_path), KillsAt(2, 5)]
    options = {**PIPELINE, "checkpoint_dir": str(tmp_path), "callbacks": callbacks}
    left = recovered.run_of(3, options, {})
    recovered.check(left, recovered.run_of(3, PIPELINE, {})[0])
    assert [event["step"] for event in left[0].recovered] == [step]
    told = [event["step"] for event in left[0].events if event["event"] == "checkpoint"]
    assert told == [saved]


def test_the_start_is_told_by_the_next_rank_where_the_first_one_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have begun the run; an earlier run in the same log does not count."""
    log, told = tmp_path / "log", Report.event

    def dies(report: Report, event: Event) -> None:
        if event["event"] == "start" and comms:
            threads.kill(comms.pop())
        told(report, event)

    def fit(comm: Comm, first: bool) -> None:
        trainer = trainer_of(comm, log=str(log), quiet=True, append=True)
        if comm.rank == 0 and not first:
            comms.append(comm)
        trainer.fit()

    comms: list[Comm] = []
    monkeypatch.setattr(Report, "event", dies)
    for first in (True, False):
        turns.run(3, fit, first, fault_tolerant=True)
    kinds = Counter(json.loads(line)["event"] for line in log.read_text().splitlines())
    assert (kinds["start"], kinds["epoch"], kinds["done"]) == (2, 4, 2)


def test_ranks_of_which_some_are_in_fit_set_up_again_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank is lost when some ranks have made the Trainer, and others have not."""
    made, count, opened = Counter[int](), Hub._begin, train.opened

    def run(comm: Comm) -> int:
        config: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "epochs": 1, "quiet": True}
        return train.train(Config(**config, pp=2, micro_batches=2), comm, ())

    def counted(hub: Hub, by: Any, *operation: Any) -> None:
        made[by.job_rank] += 1
        count(hub, by, *operation)

    def opens(trainer: Trainer, comm: Comm) -> Report | None:
        if comm.rank == 3:
            ends.append(made[3])
        return opened(trainer, comm)

    ends = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(Hub, "_begin", counted)
        patch.setattr(train, "opened", opens)
        turns.run(4, run, fault_tolerant=True)
    for operations in range(ends[0] - 8, ends[0] + 1):
        left = turns.run(4, run, fault_tolerant=True, killed={3: operations})
        assert left[:3] == [0, 0, 0]


@pytest.mark.parametrize("zero", [0, 1], ids=["whole copies", "zero 1"])
def test_a_checkpoint_of_steps_that_a_restore_has_undone_does_not_count_where_a_rank_is_lost(
    zero: int, tmp_path: Path
) -> None:
    """The one that is being written when the run goes back is complete later. With ZeRO the others
    have no whole copy: they go on from step 2, not from the old step 4."""

    def kills(trainer: Trainer, event: Event) -> None:
        if event["step"] == 3:
            kill_soon(trainer.comm, 2, 5)

    heard = GoesBack(2, 5, then=kills)
    saves = {"checkpoint_dir": str(tmp_path), "save_every": "1", "keep": 9, "callbacks": [heard]}
    options = {**COMMON, **RING, "zero": zero, "steps": 8, "epochs": 4, **saves}
    left = recovered.run_of(3, options, {})
    assert [event["step"] for event in left[0].recovered] == [2 if zero else 3]
    assert heard.steps[0][:5] == [1, 2, 3, 4, 5]
    assert [*dict.fromkeys(heard.steps[0][5:])] == [3, 4, 5, 6, 7, 8]


def test_a_run_resumes_from_the_newest_step_that_no_restore_has_undone(tmp_path: Path) -> None:
    """Also from one that was written after others had turned out to be damaged."""

    class GoesBackTwice:
        def __init__(self, end: list[int]) -> None:
            self.snapshot: Snapshot | None = None
            self.steps, self.end = list[int](), end

        def on_step(self, trainer: Trainer, event: Event) -> None:
            self.steps.append(event["step"])
            if event["step"] == 2:
                self.snapshot = trainer.snapshot()
            elif event["step"] == 5 and self.snapshot and self.steps.count(5) < 3:
                trainer.restore(self.snapshot)
            if self.steps == self.end:
                raise RuntimeError("it ends here")

    def fit(*steps: int, resume: bool = True) -> list[int]:
        saves = {"checkpoint_dir": str(tmp_path), "save_every": "1", "keep": 9, "resume": resume}
        heard = GoesBackTwice([*steps])

        def rank(comm: Comm) -> None:
            with suppress(RuntimeError):
                trainer_of(comm, heard, epochs=4, quiet=True, **saves).fit()

        turns.run(1, rank)
        return heard.steps

    def damage(*steps: int) -> None:
        for step in steps:
            file = tmp_path / f"step-{step:08d}" / "rank-00000.safetensors"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)

    steps = [1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
    assert fit(*steps, resume=False) == steps
    assert read_outcome(tmp_path / "step-00000003").restored == (2, 2)
    damage(3, 4)
    assert fit(3, 4, 5) == [3, 4, 5]  # from step 2, since step 5 was undone
    assert fit() == [4, 5, 6]  # from step 3, which was written since


def test_a_run_that_goes_on_twice_from_one_checkpoint_tells_so_once_where_the_first_rank_is_lost(
    tmp_path: Path,
) -> None:
    log, saved = tmp_path / "log", tmp_path / "checkpoints"

    def stops(trainer: Trainer, event: Event) -> None:
        if event["step"] == 5:
            raise RuntimeError("it ends here")

    def fit(comm: Comm, callbacks: list[object], resume: bool) -> None:
        files = {"log": str(log), "checkpoint_dir": str(saved), "resume": resume}
        trainer_of(comm, *callbacks, steps=8, epochs=4, quiet=True, **files).fit()

    ends = SimpleNamespace(on_step=stops)
    for callbacks, resume in (([SavesAt(3, saved), ends], False), ([ends], True)):
        with pytest.raises(RuntimeError):
            turns.run(3, fit, callbacks, resume)
    turns.run(3, fit, [KillsAt(0, 5)], True, fault_tolerant=True)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = Counter(event["event"] for event in events)
    assert (kinds["resumed"], kinds["recovered"], kinds["done"]) == (1, 1, 1)
