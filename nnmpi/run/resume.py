"""Resumed: what a run goes on from, read from a directory of checkpoints and compared with it."""

from typing import Any, NamedTuple

from nnmpi.run import consistency
from nnmpi.run.files.logs import LogMark
from nnmpi.run.report.pace import PaceCounts
from nnmpi.run.setup.setup import Setup
from nnmpi.run.snapshot import Snapshot


class Resumed(NamedTuple):
    """A checkpoint from which a run goes on.

    path       of the checkpoint
    lines      what to tell: which newer ones are damaged, and what is another now
    snapshot   what this rank reads of it
    ended      the number of steps of a run that is complete, else None
    mark       of its log
    pace       its time so far
    best       what --keep-best has found so far
    callbacks  their names and states
    """

    path: str
    lines: tuple[str, ...]
    snapshot: Snapshot
    ended: int | None
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
