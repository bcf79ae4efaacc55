"""Resumed: what a run goes on from, read from a directory of checkpoints and compared with it."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.parallel.agreement import all_or_none
from nnmpi.quoting import shown
from nnmpi.run import consistency
from nnmpi.run.checkpoints.manifest import DamagedError
from nnmpi.run.checkpoints.read import Found, newest
from nnmpi.run.checkpoints.write import versions
from nnmpi.run.files.logs import LogMark
from nnmpi.run.may_change import check_may_change, warnings
from nnmpi.run.report.pace import PaceCounts
from nnmpi.run.setup.setup import Setup
from nnmpi.run.snapshot import Snapshot


class Resumed(NamedTuple):
    """A checkpoint from which a run goes on.

    path       of the checkpoint
    lines      what to tell: which newer ones are damaged, and what is another now
    snapshot   what this rank reads of it
    is_over    whether the run was complete, and has no more steps now
    total_steps   that it had
    mark       of its log
    pace       its time so far
    best       what --keep-best has found so far
    callbacks  their names and states
    """

    path: str
    lines: tuple[str, ...]
    snapshot: Snapshot
    is_over: bool
    total_steps: int
    mark: LogMark | None
    pace: PaceCounts
    best: float | None
    callbacks: tuple[tuple[str, Any], ...]


def facts_of(setup: Setup) -> dict[str, Any]:
    """What is compared when a run is resumed, besides options; the same on all ranks."""
    return {
        "the data set": consistency.digest_of(setup.dataset),
        "standardisation": setup.standardiser.metadata(),
        "functions for options": dict(setup.own),
    }


def resumed(
    directory: str | os.PathLike[str], setup: Setup, comm: Comm, needed: bool = True
) -> Resumed | None:
    """What a run goes on from: the newest checkpoint that is whole; every rank calls it.

    Where there is none it is None, or raises ValueError if one is `needed`.
    """
    damaged: dict[int, str] = {}
    while True:
        found = newest(directory, comm, damaged)
        if found is None:
            if needed:
                raise ValueError(
                    f"there is no checkpoint in {shown(directory)} to resume from: name another "
                    "directory, or begin without --resume"
                )
            return None
        try:
            snapshot, about = found.snapshot(comm), all_or_none(comm, found.about)
        except DamagedError as error:
            damaged[found.step] = str(error)
            continue
        return _compared(found, snapshot, about, setup)


def _compared(found: Found, snapshot: Snapshot, about: dict[str, Any], setup: Setup) -> Resumed:
    """Raises ValueError, on all ranks, if the checkpoint is of a run that this one cannot be."""
    before = {**vars(snapshot.config), **about["facts"]}
    now = {**vars(setup.config), **facts_of(setup)}
    check_may_change(before, now, f"the checkpoint {shown(found.folder)}")
    return Resumed(
        str(found.folder),
        (*found.passed_over, *warnings(before, now), *_software(found)),
        snapshot,
        *(about["complete"], about["total_steps"]),
        about["log"] and LogMark(*about["log"]),
        PaceCounts(*about["pace"]),
        about["best"],
        tuple(about["callbacks"]),
    )


def _software(found: Found) -> Iterator[str]:
    """One line on versions and kernels that are others now."""
    before, now = found.manifest.versions, versions()
    others = [f"{k} {now.get(k)} (was {v})" for k, v in before.items() if now.get(k) != v]
    if others:
        yield f"sums may be added in another order than before, with {', '.join(others)}"
