"""Communication in the background: works that go on while their rank computes, and counters.

    rank      F0 ─────── B0 ──────────────────────── UPDATE ───
    lane 1                   ├─ all_reduce ─┤  ├─ all_reduce ─┤
    lane 2                          ├─ all_reduce ─┤

A slice leads from the start of a work to when it was found complete.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nnmpi.run.trace.recording import WAITS, which
from nnmpi.run.trace.summary import MESSAGES

CATEGORY = "background"


class RankWorks(NamedTuple):
    """The works of a rank."""

    rows: np.ndarray  # of WORK
    operations: list[tuple[str, str, int]]  # name, algorithm and bytes of each


def within_waits(works: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Which works began and ended in one event of communication, which shows them already."""
    shown = events[which(events, *WAITS, *MESSAGES)]
    shown = shown[np.argsort(shown["began"], kind="stable")]
    last = np.searchsorted(shown["began"], works["began"], "right") - 1
    ends = np.append(shown["ended"], -np.inf)  # the last one is that of no event
    found: np.ndarray = works["ended"] <= ends[last]
    return found


def slices(
    works: RankWorks, events: np.ndarray, rank: int, start: float
) -> Iterator[dict[str, Any]]:
    """Complete events of what is in the background, on as many lanes as are needed."""
    rows = works.rows[~within_waits(works.rows, events)]
    ends = list[int]()  # of the last work of each lane
    times = (nanoseconds(rows[name], start).tolist() for name in ("began", "ended"))
    for row, began, ended in zip(rows, *times, strict=True):
        lane = next((i for i, end in enumerate(ends) if end <= began), len(ends))
        known = {"pid": rank, "tid": 1 + lane}
        if lane == len(ends):
            named = {"name": "communication in the background"}
            yield {"ph": "M", **known, "name": "thread_name", "args": named}
        ends[lane : lane + 1] = [ended]
        name, algorithm, nbytes = works.operations[row["operation"]]
        args = {"step": int(row["step"]), "bytes": nbytes, "algorithm": algorithm}
        when = {"ts": began / 1000, "dur": (ended - began) / 1000}
        yield {"ph": "X", **known, "cat": CATEGORY, "name": name, "args": args, **when}


def counters(
    works: RankWorks, events: np.ndarray, rank: int, start: float
) -> Iterator[dict[str, Any]]:
    """The bytes of all works under way, after each change, and the memory of the process."""
    sizes = np.array([nbytes for *_, nbytes in works.operations], np.int64)
    sizes = sizes[works.rows["operation"]]
    times = np.concatenate([works.rows["began"], works.rows["ended"]])
    order = np.argsort(times, kind="stable")
    under_way = np.cumsum(np.concatenate([sizes, -sizes])[order])
    known = events["memory"] > 0
    for name, at, values in (
        ("bytes under way", times[order], under_way),
        ("memory", events["ended"][known], events["memory"][known]),
    ):
        for ts, value in zip(nanoseconds(at, start).tolist(), values.tolist(), strict=True):
            counted = {"name": name, "args": {"bytes": value}}
            yield {"ph": "C", "pid": rank, "tid": 0, **counted, "ts": ts / 1000}


def nanoseconds(times: np.ndarray, start: float) -> np.ndarray:
    """Whole nanoseconds since the start: so what is nested stays nested."""
    whole: np.ndarray = np.rint((times - start) * 1e9).astype(np.int64)
    return whole
