"""The verdict on a run under a case: good, or the promise that it breaks."""

import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from helpers.once import once
from helpers.training.recovered import Left

from nnmpi.addons.checkpoints.read import newest_of
from nnmpi.addons.recovery.run.recovery import NothingLeftError
from nnmpi.comm.transport.base import AbortedError
from simulation import oracles
from simulation.case import Case
from simulation.disk import Tree, write_tree
from simulation.files import PowerCut, files_are_whole, in_memory
from simulation.held import meetings
from simulation.layouts import LAYOUTS
from simulation.oracles import Observed
from simulation.run import Ended, run
from simulation.scheduler import SimulatedScheduler

GOOD = ("good", "suspended", "nothing left")
CHECKPOINTS = "checkpoints"


class Verdict(NamedTuple):
    """What a run was like: one of GOOD, or the kind of failure, with a text."""

    kind: str
    text: str
    scheduler: SimulatedScheduler

    @property
    def is_bad(self) -> bool:
        return self.kind not in GOOD


class Undisturbed(NamedTuple):
    """The run of a layout that nobody leaves, with the dullest decisions."""

    first: Left
    counts: list[int]  # operations of each rank
    passed: Counter[tuple[int, str]]  # how often each rank has passed each mark


@once
def undisturbed(name: str) -> Undisturbed:
    """The run of this layout that nobody leaves; made once."""
    with tempfile.TemporaryDirectory() as folder:
        ended = _run(Case(name, drawn=()), folder)
    if ended.error is not None:
        raise ended.error
    first = ended.left[0]
    assert first is not None
    passed = Counter((mark.rank, mark.mark) for mark in ended.scheduler.marks)
    return Undisturbed(first, ended.scheduler.counts, passed)


def verdict(case: Case) -> Verdict:
    """Runs a case, and judges what is left; a run that was suspended is resumed."""
    with in_memory() as folder:
        power = PowerCut(case, Path(folder), CHECKPOINTS)
        with power.happens():
            ended = _run(case, folder)
        try:
            if power.error is not None:
                raise power.error
            files_are_whole(Path(folder, CHECKPOINTS))
            result = _judged(case, ended, folder)
            if power.left is not None and not result.is_bad:
                _check_after_a_power_cut(case, power.left)
            return result
        except AssertionError as error:
            return Verdict("wrong", str(error) or traceback.format_exc(), ended.scheduler)


def _run(case: Case, folder: str, **options: bool) -> Ended:
    files = {"checkpoint_dir": f"{folder}/{CHECKPOINTS}"} if LAYOUTS[case.layout].saves else {}
    return run(case, **files, **options)


def _judged(case: Case, ended: Ended, folder: str) -> Verdict:
    scheduler, error = ended.scheduler, ended.error
    if scheduler.changed:
        text = f"changed while they were sent: {scheduler.changed}"
        return Verdict("bytes changed", text, scheduler)
    if isinstance(error, AbortedError):
        return Verdict("hang", str(error), scheduler)
    met = meetings(scheduler.told, scheduler.tensors, scheduler.size)
    if isinstance(error, NothingLeftError):
        oracles.nothing_is_left(case, scheduler.marks, met, error)
        return Verdict("nothing left", str(error), scheduler)
    if error is not None:
        return Verdict("raised", "".join(traceback.format_exception(error)), scheduler)
    left = [rank for rank in ended.left if rank is not None]
    if not left:
        return Verdict("good", "no rank is left", scheduler)
    plain, marks = undisturbed(case.layout).first, scheduler.marks
    when = {"stops": scheduler.stops, "jumps": scheduler.jumps}
    observed = Observed(case, left, plain, marks, met, **when)
    oracles.ranks_end_alike(observed)
    oracles.a_stop_is_kept(observed)
    oracles.a_stop_is_in_time(observed)
    oracles.a_jump_is_heeded(observed)
    oracles.losses_are_kept_until_a_death(observed)
    oracles.ranks_go_on_from_the_newest_version(observed)
    if observed.layout.saves:
        oracles.the_end_is_in_a_checkpoint(observed, Path(folder, CHECKPOINTS))
    if left[0].last["event"] == "done":
        _check_whole(observed)
        return Verdict("good", "", scheduler)
    oracles.steps_are_made_until_a_stop(observed)
    if left[0].last["event"] == "suspended":
        _check_resumed(case, folder, observed.left[0].last["steps"])
    return Verdict("suspended", "", scheduler)


def _check_whole(observed: Observed) -> None:
    oracles.bits_are_kept(observed)
    oracles.every_step_is_made_once(observed)
    oracles.few_steps_are_made_again(observed)


def _check_resumed(case: Case, folder: str, before: int) -> None:
    """Checks that a run goes on from its checkpoint of a step, and ends as if nothing had ended
    it."""
    ended = _run(Case(case.layout, drawn=()), folder, resume=True)
    if ended.error is not None:
        raise AssertionError("a run cannot be resumed") from ended.error
    left = [rank for rank in ended.left if rank is not None]
    plain = undisturbed(case.layout).first
    resumed = Observed(case, left, plain, ended.scheduler.marks, before=before)
    oracles.ranks_end_alike(resumed)
    _check_whole(resumed)


def _check_after_a_power_cut(case: Case, tree: Tree) -> None:
    """Checks that what is left of the files is enough to go on, unless nothing was written or all
    steps were made."""
    with in_memory() as folder:
        write_tree(tree, Path(folder))
        directory = Path(folder, CHECKPOINTS)
        found = newest_of(directory) if directory.is_dir() else None
        if found is not None and not found.about().complete:
            _check_resumed(case, folder, found.step)
