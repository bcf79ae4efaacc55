"""The seconds that each rank computed, communicated and waited."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from nnmpi.run.trace.recording import EVALUATION, KINDS, WAITS, which
from nnmpi.run.trace.waits import Traced

COMPUTE = ("F", "B", "I", "W", "RECOMPUTE", "UPDATE")
MESSAGES = tuple(kind for kind in KINDS if kind not in (*COMPUTE, *WAITS, "evaluate"))


class Seconds(NamedTuple):
    """How a rank spent the time from its first to its last recorded step, without evaluation."""

    computing: float
    communicating: float  # while nothing was computed
    waiting: float  # for ranks that were not there yet
    other: float  # such as gathering batches


def seconds(t: Traced) -> Seconds:
    """Of a rank that has recorded a step."""
    events = t.events
    in_steps = np.flatnonzero(events["step"] >= 0)
    first, last = in_steps[[0, -1]]
    span = events["ended"][last] - events["began"][in_steps].min()
    evaluations = events[first:last][which(events[first:last], "evaluate")]
    waits = which(events, *WAITS) & (events["step"] >= 0)
    computing = t.net[which(events, *COMPUTE)].sum()
    waiting = (t.arrived - events["began"])[waits].sum()
    communicating = (events["ended"] - t.arrived)[waits].sum()
    communicating += t.net[which(events, *MESSAGES)].sum()
    other = span - (evaluations["ended"] - evaluations["began"]).sum()
    other -= computing + communicating + waiting
    return Seconds(*map(float, (computing, communicating, waiting, other)))


def facts(found: Sequence[Traced]) -> dict[str, Any]:
    """What the last event says: of each rank that has recorded something."""
    ranks = {str(r): seconds(t) for r, t in enumerate(found) if (t.events["step"] >= 0).any()}
    rows = {
        rank: {name: round(x, 6) for name, x in of._asdict().items()} for rank, of in ranks.items()
    }
    steps = {*chain(*(np.unique(t.events["step"]).tolist() for t in found))} - {EVALUATION}
    return {"steps": len(steps), "ranks": rows}
