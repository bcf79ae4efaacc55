"""What must hold of a run in which ranks are killed: the promises of faults.md here and of
docs/checkpoints.md, a function each. They raise AssertionError.

    losses          ranks_end_alike, bits_are_kept, losses_are_kept_until_a_death,
                    every_step_is_made_once, few_steps_are_made_again,
                    ranks_go_on_from_the_newest_version, nothing_is_left
    stops           a_stop_is_kept, a_stop_is_in_time, a_jump_is_heeded,
                    steps_are_made_until_a_stop
    checkpoints     the_end_is_in_a_checkpoint; those of files are in files.py
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.training import recovered
from helpers.training.recovered import Left

from nnmpi.addons.checkpoints import keep
from nnmpi.addons.checkpoints.read import newest_of
from nnmpi.addons.recovery.run.recovery import NothingLeftError
from simulation.case import Case
from simulation.held import Meeting
from simulation.layouts import LAYOUTS, Layout
from simulation.scheduler import AtStep, MarkPassed

NORM = 5  # the place of the norm of gradients among what is told of an epoch
LOSS_FACTOR, LOSS_MARGIN = 1.6, 0.05  # how much worse fewer replicas may train that average


class Observed(NamedTuple):
    """A run that has ended, beside the run of the same layout that nobody leaves.

    left      of the ranks that are left
    marks     that ranks have passed
    meetings  of ranks that have recovered
    before    the steps of the run that this one resumes; 0 if it resumes none
    stops     which ranks were asked to stop, and when
    jumps     when the clock has jumped
    """

    case: Case
    left: Sequence[Left]
    undisturbed: Left
    marks: Sequence[MarkPassed]
    meetings: Sequence[Meeting] = ()
    before: int = 0
    stops: Sequence[AtStep] = ()
    jumps: Sequence[AtStep] = ()

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


def losses_are_kept_until_a_death(run: Observed) -> None:
    """The losses of steps before the first recovery are those of the undisturbed run, bit for
    bit."""
    if not run.layout.is_ordered or run.before:
        return
    steps = [event["step"] for rank in run.left for event in rank.recovered]
    expected, until = dict(run.undisturbed.told.steps), min(steps, default=None)
    for rank in run.workers:
        if run.layout.servers and _as_with_servers(rank, run.undisturbed).serves:
            continue  # it has heard of epochs
        for step, loss in rank.told.steps:
            if until is None or step <= until:
                assert loss == expected[step], f"loss {loss} of step {step}, not {expected[step]}"


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
    """After one death no step is made again if each part of the model is on two ranks, unless the
    last message of the dead one is lost with it; with --backup N at most N + 1 are."""
    options, layout = run.layout.options, run.layout
    if options.get("every", 1) > 1 or layout.servers or layout.arranges_anew or layout.saves:
        return
    if "backup" in options:
        most = options["backup"] + 1
    else:  # only one rank may have made the last step, if a rank dies in a recovery, or if the dead
        # one has agreed on the step within its replica, and its last sum is lost with it
        is_cut, loses = layout.copies(layout.ranks) < layout.ranks, "loses a message"
        groups = death_groups(layout, run.marks)
        is_lost = is_cut and bool(passed(run.marks, loses))
        most = int(is_lost or any(group.deaths > 1 for group in groups))
    for event in (event for rank in run.workers for event in rank.recovered):
        again = event["steps_again"]
        assert again <= most, f"{again} steps are made again, at most {most} may be"


def a_stop_is_kept(run: Observed) -> None:
    """A run stops only if a rank was asked to; if all ranks have agreed to stop, it does, and with
    checkpoints it is suspended."""
    event = run.left[0].last["event"]
    dead = {mark.rank for mark in passed(run.marks, "dies")}
    known = [*passed(run.marks, "stopping"), *passed(run.marks, "suspending")]
    is_agreed = any(mark.rank not in dead for mark in known)
    stopped = "suspended" if run.layout.saves else "stopped"
    assert event in ("done", stopped), f"the run ends as {event}, not {stopped}"
    is_asked = run.case.signals or run.jumps or run.layout.stops_after
    assert event == "done" or is_asked, "nobody was asked to stop"
    assert event == stopped or not is_agreed, "all ranks have agreed to stop, but the run goes on"


def a_stop_is_in_time(run: Observed) -> None:
    """Callbacks that stop after a step end training there. A rank that is asked to stop, and is
    left, ends it after the step that it makes then; if it makes steps again after a loss, after the
    first one that is new."""
    last = run.left[0].last["steps"]
    if run.layout.stops_after is not None and not run.case.signals:
        assert last == run.layout.stops_after, f"stops after {last}, not {run.layout.stops_after}"
    for at, most in _due(run, run.stops, 1):
        assert last <= most, f"asked to stop after step {at.step}, but made {last}, not {most}"


def a_jump_is_heeded(run: Observed) -> None:
    """When the clock jumps ahead, beyond a time limit or the time of a checkpoint, rank 0 sees it
    after the step that it makes then, and all ranks end training, or write, after the next one."""
    if not run.layout.heeds_clock:
        return
    last, ends = run.left[0].last["steps"], "time_limit" in run.layout.options
    saved = [event["step"] for event in run.left[0].events if event["event"] == "checkpoint"]
    for at, most in _due(run, run.jumps, 2):
        if ends:
            assert last <= most, f"the limit was over after step {at.step}, but {last} were made"
        elif most < run.undisturbed.told.steps[-1][0]:
            is_saved = any(at.step <= step <= most for step in saved)
            assert is_saved, f"after step {at.step} a checkpoint was due by the clock, not {saved}"


def _due(run: Observed, asked: Sequence[AtStep], n: int) -> Iterator[tuple[AtStep, int]]:
    """Yields where a rank that is left was asked for something, with the n-th step from then on;
    steps that are made again after a loss do not count."""
    waited = {mark.rank for mark in passed(run.marks, "waiting")}
    dead = {mark.rank for mark in passed(run.marks, "dies")}
    losses = [event for rank in run.left for event in rank.recovered]
    made = max((event["step"] + event["steps_again"] for event in losses), default=0)
    steps = [step for step, _ in run.undisturbed.told.steps]
    for at in asked:
        if run.layout.steps_together and at.rank not in waited | dead:
            later = [step for step in steps if step > max(at.step, made)]
            yield at, later[n - 1] if len(later) >= n else steps[-1]


def steps_are_made_until_a_stop(run: Observed) -> None:
    """A run that was suspended has made each step until then once; if it went back to a checkpoint,
    it stops there, or not before the steps that it has told of are made again. Where a callback has
    just gone back to a snapshot, it stops at the step of that snapshot. A rank misses steps only as
    often as it was spare."""
    last, waited = run.left[0].last["steps"], times_waited(run)
    expected = [step for step, _ in run.undisturbed.told.steps]
    misses_some = bool(run.layout.options.get("elastic"))  # a rank that was spare from the start
    for rank, times in zip(run.left, waited, strict=True):
        if rank.is_spare:
            continue
        if run.layout.servers:
            rank = _as_with_servers(rank, run.undisturbed)
        if not rank.serves and run.layout.is_ordered:
            steps = [step for step, _ in rank.told.steps]
            told = [step for step in expected if step in steps]
            heard = told if misses_some or times else expected
            missed = gaps([step for step in expected if step <= last], steps)
            assert misses_some or missed <= times, f"steps {steps}, but {times} times spare"
            assert steps == heard[: len(steps)], f"steps {steps}"
            back_to = {event["step"] for event in rank.recovered}
            # undisturbed, the step after that of the snapshot is next, too
            is_restored = run.layout.arranges_anew and heard[len(steps) :][:1] == [last + 1]
            may_stop = not steps or steps[-1] == last or (steps[-1] > last and last in back_to)
            may_stop = may_stop or is_restored or (times > 0 and steps[-1] < last)
            assert may_stop, f"steps {steps}, but suspended after {last}, back to {back_to}"


def gaps(expected: Sequence[int], heard: Sequence[int]) -> int:
    """How many times steps that follow each other are missing."""
    missed = [step not in heard for step in expected]
    return sum(now and not before for before, now in zip([False, *missed], missed, strict=False))


def times_waited(run: Observed) -> list[int]:
    """How often each of the ranks that are left was spare."""
    waited = Counter(mark.rank for mark in passed(run.marks, "waiting"))
    dead = {mark.rank for mark in passed(run.marks, "dies")}
    return [waited[rank] for rank in range(run.layout.ranks) if rank not in dead]


def ranks_go_on_from_the_newest_version(run: Observed) -> None:
    """After a loss the run goes on from the newest version of which the ranks that are left have
    every element, or from a checkpoint that is newer; from the start only before a first step."""
    meetings = {meeting.lost: meeting for meeting in run.meetings}
    for event in (event for rank in run.workers for event in rank.recovered):
        step, meeting = event["step"], meetings[tuple(event["lost"])]
        newest = meeting.newest()
        if newest is not None and newest >= meeting.checkpoint:
            assert step == newest, f"goes on from step {step}, though all have {newest}"
        elif meeting.checkpoint >= 0 or meeting.has_begun:
            assert passed(run.marks, "written"), f"goes on from {step}, which nobody has whole"
            assert step >= meeting.checkpoint, f"goes on from {step}, not {meeting.checkpoint}"
        else:
            assert step == 0, f"goes on from step {step}, though nobody has made one"


# ---- what is on disk


def the_end_is_in_a_checkpoint(run: Observed, directory: Path) -> None:
    """A run that is done, or suspended, has written its last step, from which it would go on, and
    left nothing unfinished."""
    names = sorted(path.name for path in directory.iterdir() if path.name != keep.LOCK)
    last, newest = run.left[0].last["steps"], newest_of(directory)
    assert newest is not None
    assert newest.step == last, f"{names}, of which {newest.step} counts, but it ends at {last}"
    assert not [name for name in names if name.startswith(".")], f"{names} are left"


def _with_known_gaps(run: Observed) -> list[Left]:
    """The ranks that are left, with all that they may have missed: a server that became a worker
    has heard of the ends of epochs only, a rank that was spare not of what happened meanwhile."""
    left = list(run.left)
    if run.layout.servers:
        left = [_as_with_servers(rank, run.undisturbed) for rank in left]
    return [
        _as_if_never_spare(rank, run.undisturbed, times) if times else rank
        for rank, times in zip(left, times_waited(run), strict=True)
    ]


def _as_with_servers(rank: Left, undisturbed: Left) -> Left:
    """A rank as if a server was left to the end: a run without reports norms of gradients, too."""
    told, of_epochs = rank.told, undisturbed.told.epochs
    is_late = bool(told.steps) and told.steps[0][0] in {row[1] for row in of_epochs}
    told.epochs = [
        row if len(row) == len(of_epochs[0]) else (*row[:NORM], *row[NORM + 1 :])
        for row in told.epochs
    ]
    return rank._replace(serves=rank.serves or is_late)


def _as_if_never_spare(rank: Left, undisturbed: Left, times: int) -> Left:
    """A rank as if it had heard all, if what it has heard is right and in order, and it has missed
    steps only as often as it was spare."""
    if rank.is_spare:
        return rank
    heard = {step for step, _ in rank.told.steps}
    missed = gaps([step for step, _ in undisturbed.told.steps], [*heard])
    assert missed <= times, f"steps {sorted(heard)}: {missed} gaps, but {times} times spare"
    _check_part(rank.told.steps, undisturbed.told.steps, 1e-8)
    within = [((kind, step), loss) for kind, step, loss in rank.within_epochs]
    expected = [((kind, step), loss) for kind, step, loss in undisturbed.within_epochs]
    _check_part(within, expected, 1e-6)
    epochs = [row[:NORM] for row in rank.told.epochs]
    of_epochs = {row[0]: row[:NORM] for row in undisturbed.told.epochs}
    assert [row[0] for row in epochs] == sorted({row[0] for row in epochs}), f"epochs {epochs}"
    for row in epochs:
        assert row == pytest.approx(of_epochs[row[0]], rel=1e-6)
    return rank._replace(told=undisturbed.told, events=undisturbed.events)


def _check_part(
    heard: Sequence[tuple[object, float]], whole: Sequence[tuple[object, float]], bound: float
) -> None:
    """Raises AssertionError unless what was heard is a part of the whole, in its order, once."""
    at = {key: place for place, (key, _) in enumerate(whole)}
    places = [at.get(key, -1) for key, _ in heard]
    assert places == sorted({*places} - {-1}), f"heard {heard}"
    for key, value in heard:
        assert value == pytest.approx(whole[at[key]][1], rel=bound), key


# ---- when nothing is left


class DeathGroup(NamedTuple):
    """Deaths between which no recovery was complete.

    alive  ranks before the first of them
    """

    deaths: int
    alive: int


def nothing_is_left(
    case: Case, marks: Sequence[MarkPassed], meetings: Sequence[Meeting], error: NothingLeftError
) -> None:
    """A run ends only if the ranks that are left have no version whole, and could not have; the
    line names a checkpoint exactly if one was written."""
    assert bool(error.checkpoint) == bool(passed(marks, "written")), "another checkpoint"
    why = something_is_left(case, marks)
    assert not why, f"something was left: {why}: {error}"
    newest = meetings[-1].newest()
    assert newest is None, f"all of step {newest} was left: {error}"


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
