"""What must hold of a run in which ranks are killed: the promises of docs/faults.md and
docs/stopping.md, a function each. They raise AssertionError."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.training import recovered
from helpers.training.recovered import Left

from nnmpi.io.checkpoints.keep import folders
from nnmpi.io.checkpoints.manifest import read_manifest
from nnmpi.io.checkpoints.read import BlockReader
from nnmpi.io.checkpoints.schema import DamagedError
from simulation.case import Case
from simulation.layouts import LAYOUTS, Layout
from simulation.scheduler import MarkPassed

NORM = 5  # the place of the norm of gradients among what is told of an epoch
LOSS_FACTOR, LOSS_MARGIN = 1.6, 0.05  # how much worse fewer replicas may train that average


class Observed(NamedTuple):
    """A run that has ended, beside the run of the same layout that nobody leaves.

    left    of the ranks that are left
    marks   that ranks have passed
    before  the steps of the run that this one resumes; 0 if it resumes none
    """

    case: Case
    left: Sequence[Left]
    undisturbed: Left
    marks: Sequence[MarkPassed]
    before: int = 0

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.case.layout]

    @property
    def deaths(self) -> int:
        return len(passed(self.marks, "dies"))

    @property
    def workers(self) -> list[Left]:
        return [rank for rank in self.left if not rank.is_spare]


def passed(marks: Sequence[MarkPassed], name: str) -> list[MarkPassed]:
    """The passages of one mark."""
    return [mark for mark in marks if mark.mark == name]


def ranks_end_alike(run: Observed) -> None:
    """All ranks that are left end with the same event, after the same steps, with the same bits."""
    ends = {(rank.last["event"], rank.last.get("steps")) for rank in run.left}
    assert len(ends) == 1, f"ranks end differently: {ends}"
    hashes = {rank.last.get("parameters_sha256") for rank in run.left}
    assert len(hashes) == 1, f"ranks have other parameters: {hashes}"


def bits_are_kept(run: Observed) -> None:
    """Without a death, the parameters are those of the undisturbed run, whatever is late; with
    --reproducible they are in any case."""
    if not run.layout.is_ordered or run.before:
        return
    if not run.deaths or run.layout.is_repeatable:
        expected = run.undisturbed.last.get("parameters_sha256")
        for rank in run.left:
            assert rank.last.get("parameters_sha256") == expected, "other bits than undisturbed"


def every_step_is_made_once(run: Observed) -> None:
    """Each rank that works at the end has heard of each step, epoch and end once, in order; where
    fewer ranks train as more do, with the same losses."""
    if run.layout.is_exact and not run.before:
        recovered.check([*_with_known_gaps(run)], run.undisturbed)
        return
    steps = [step for step, _ in run.undisturbed.told.steps]
    of_epochs = run.undisturbed.told.epochs
    for rank in run.workers:
        assert (rank.last["event"], rank.last["steps"]) == ("done", steps[-1]), rank.last
        if rank.serves:
            continue
        heard, told = [step for step, _ in rank.told.steps], rank.told.epochs
        if run.layout.is_ordered:
            expected = steps[len(steps) - len(heard) if run.before else 0 :]
            assert heard == expected, f"steps {heard}, not {expected}"
        else:  # a worker hears of some steps only
            last = [steps[-1]] if run.before < steps[-1] else []
            assert heard == sorted({*heard, *last}), f"steps {heard}"
        assert [row[0] for row in told] == [row[0] for row in of_epochs][-len(told) :], "epochs"
        assert rank.told.ends == run.undisturbed.told.ends, "the end of the run"
        loss, undisturbed = told[-1][2], of_epochs[-1][2]
        assert loss < LOSS_FACTOR * undisturbed + LOSS_MARGIN, f"loss {loss}"  # not NaN either
        if run.layout.is_exact:
            assert told[-1] == pytest.approx(of_epochs[-1], rel=1e-6)


def few_steps_are_made_again(run: Observed) -> None:
    """After one death no step is made again if each part of the model is on two ranks; with
    --backup N at most N + 1 are."""
    options, layout = run.layout.options, run.layout
    if options.get("every", 1) > 1 or layout.servers or layout.arranges_anew or layout.saves:
        return
    if "backup" in options:
        most = options["backup"] + 1
    else:  # a rank that dies in a recovery may be the only one that has made the last step
        most = int(any(group.deaths > 1 for group in death_groups(layout, run.marks)))
    for event in (event for rank in run.workers for event in rank.recovered):
        again = event["steps_again"]
        assert again <= most, f"{again} steps are made again, at most {most} may be"


def a_stop_is_kept(run: Observed) -> None:
    """A run stops only if a rank was asked to; if all ranks have agreed to stop, it does, and with
    checkpoints it is suspended."""
    event = run.left[0].last["event"]
    is_agreed = passed(run.marks, "stopping") or passed(run.marks, "suspending")
    stopped = "suspended" if run.layout.saves else "stopped"
    assert event in ("done", stopped), f"the run ends as {event}, not {stopped}"
    assert event == "done" or run.case.signals, "nobody was asked to stop"
    assert event == stopped or not is_agreed, "all ranks have agreed to stop, but the run goes on"


def steps_are_made_until_a_stop(run: Observed) -> None:
    """A run that was suspended has made each step until then once; if it went back to a checkpoint,
    it stops there, or not before the steps that it has told of are made again."""
    last = run.left[0].last["steps"]
    expected = [step for step, _ in run.undisturbed.told.steps]
    misses_some = bool(run.layout.options.get("elastic"))  # a rank that was spare
    for rank in run.workers:
        if run.layout.servers:
            rank = _as_with_servers(rank, run.undisturbed)
        if not rank.serves and run.layout.is_ordered:
            steps = [step for step, _ in rank.told.steps]
            heard = [step for step in expected if step in steps] if misses_some else expected
            assert steps == heard[: len(steps)], f"steps {steps}"
            back_to = {event["step"] for event in rank.recovered}
            may_stop = not steps or steps[-1] == last or (steps[-1] > last and last in back_to)
            assert may_stop, f"steps {steps}, but suspended after {last}, back to {back_to}"


def files_are_whole(directory: Path) -> None:
    """Each checkpoint that has its final name can be read, whoever died while it was written."""
    by_step = folders(directory) if directory.is_dir() else {}
    for folder in by_step.values():
        try:
            BlockReader(folder, read_manifest(folder)).check()
        except DamagedError as error:
            raise AssertionError(f"{folder.name} is torn: {error}") from error


def _with_known_gaps(run: Observed) -> list[Left]:
    """The ranks that are left, with all that they may have missed: a server that became a worker
    has heard of the ends of epochs only, a rank that was spare not of what happened meanwhile."""
    left = list(run.left)
    if run.layout.servers:
        left = [_as_with_servers(rank, run.undisturbed) for rank in left]
    if run.deaths > 1 or run.layout.options.get("elastic"):
        left = [_as_if_never_spare(rank, run.undisturbed) for rank in left]
    return left


def _as_with_servers(rank: Left, undisturbed: Left) -> Left:
    """A rank as if a server was left to the end: a run without reports norms of gradients, too."""
    told, of_epochs = rank.told, undisturbed.told.epochs
    is_late = bool(told.steps) and told.steps[0][0] in {row[1] for row in of_epochs}
    told.epochs = [
        row if len(row) == len(of_epochs[0]) else (*row[:NORM], *row[NORM + 1 :])
        for row in told.epochs
    ]
    return rank._replace(serves=rank.serves or is_late)


def _as_if_never_spare(rank: Left, undisturbed: Left) -> Left:
    """A rank as if it had heard all, if what it has heard is right and in order."""
    losses, steps = dict(undisturbed.told.steps), [step for step, _ in rank.told.steps]
    is_right = steps == sorted(set(steps)) and all(
        loss == pytest.approx(losses[step], rel=1e-8) for step, loss in rank.told.steps
    )
    epochs = [row[:2] for row in rank.told.epochs]
    expected = [row[:2] for row in undisturbed.told.epochs]
    is_right = is_right and epochs == expected[len(expected) - len(epochs) :]
    if rank.is_spare or not is_right:
        return rank
    return rank._replace(told=undisturbed.told, events=undisturbed.events)


# ---- when nothing is left


class DeathGroup(NamedTuple):
    """Deaths between which no recovery was complete.

    alive  ranks before the first of them
    """

    deaths: int
    alive: int


def something_is_left(case: Case, marks: Sequence[MarkPassed]) -> str:
    """Why a run may not end because a part of the model is gone; "" if it may.

    A part that has c copies on c ranks is gone only if c ranks or more die before a recovery is
    complete. A checkpoint that was written is never gone.
    """
    layout = LAYOUTS[case.layout]
    servers = range(layout.ranks - layout.servers, layout.ranks)
    if passed(marks, "written"):
        return "a checkpoint was written"
    if layout.servers:  # they have all of the model when an epoch begins
        is_server_lost = any(mark.rank in servers for mark in passed(marks, "dies"))
        return "" if is_server_lost else "only workers were killed"
    groups = death_groups(layout, marks)
    if any(group.deaths >= layout.copies(group.alive) for group in groups):
        return ""
    return f"deaths {[(g.deaths, layout.copies(g.alive)) for g in groups]} (deaths, copies)"


def death_groups(layout: Layout, marks: Sequence[MarkPassed]) -> list[DeathGroup]:
    """Groups of deaths, in order."""
    groups, alive, last = list[DeathGroup](), set(range(layout.ranks)), 0
    for turn, rank, _ in passed(marks, "dies"):
        if not groups or _is_whole(layout, marks, alive - {rank}, last, turn):
            groups.append(DeathGroup(0, len(alive)))
        groups[-1] = groups[-1]._replace(deaths=groups[-1].deaths + 1)
        alive.discard(rank)
        last = turn
    return groups


def _is_whole(
    layout: Layout, marks: Sequence[MarkPassed], ranks: set[int], since: int, until: int
) -> bool:
    """True if all these ranks have recovered between two turns; with --backup, if they have backups
    again: the session that they open has made one."""

    def latest(name: str) -> dict[int, int]:
        return {m.rank: m.turn for m in passed(marks, name) if since < m.turn < until}

    recovered_at = latest("recovered")
    return ranks <= recovered_at.keys()
