"""RunPlan: the layout that --plan has found for a run, and what is said of it."""

from typing import NamedTuple

from nnmpi.parallel.planning.search import Planned
from nnmpi.run.report import Event


class RunPlan(NamedTuple):
    """What a run was planned to take.

    looked  how many layouts were looked at
    notes   what one should know of the figures, a line each
    """

    layout: Planned
    looked: int
    notes: list[str]

    def event(self) -> Event:
        """What the start of the run says of it."""
        return {
            "layout": self.layout.flags,
            "predicted_seconds": self.layout.time.seconds,
            "predicted_bytes": self.layout.nbytes,
            "looked": self.looked,
            "notes": self.notes,
        }

    def outcome(self, batch_size: int, samples_per_second: float) -> Event:
        """The seconds of a step, as predicted and as measured."""
        predicted = self.layout.time.seconds
        if not samples_per_second:  # a second step was not made
            return {"predicted_seconds": predicted}
        measured = batch_size / samples_per_second
        error = predicted / measured - 1
        return {"predicted_seconds": predicted, "measured_seconds": measured, "error": error}
