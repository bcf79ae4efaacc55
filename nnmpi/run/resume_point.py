"""ResumePoint: the checkpoint from which a run continues."""

from typing import Any, NamedTuple

from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.files.outputs import LogMark
from nnmpi.io.output.pace import PaceCounts


class ResumePoint(NamedTuple):
    """The content of a checkpoint from which a run continues.

    lines        notes for the user: steps that are repeated, newer checkpoints that are damaged,
                 and what has changed
    passed_over  the notes, among `lines`, on damaged checkpoints
    is_over      True if the run was complete, and has no more steps now
    total_steps  the number of steps of the run that wrote it
    mark         the length of that run's log, and its end
    pace         the time that the run has taken so far
    callbacks    names and states of the callbacks
    restored     the steps to which `restore` had taken the run, in order
    """

    path: str
    lines: tuple[str, ...]
    passed_over: tuple[str, ...]
    snapshot: Snapshot
    is_over: bool
    total_steps: int
    mark: LogMark | None
    pace: PaceCounts
    callbacks: tuple[tuple[str, Any], ...]
    restored: tuple[int, ...]
