"""The file of --trace, in the trace event format of Chrome, which ui.perfetto.dev shows.

There is one process per rank, in order. Operations are complete events. A wait within an operation
is drawn as a part of category "wait", until the other ranks are ready, and a part of category
"communicate". An arrow leads from a send to the end of the wait for it. Collectives and messages in
the background (Works) are drawn on further lines of the rank, called lanes, from their start to
when their end was noticed; above them are counters of the bytes in flight and of the memory.

`nnmpi.addons.simulator.commands.trace` reads the file.

    rank      F0 ─────── B0 ──────────────────────── APPLY ───
    lane 1                   ├─ all_reduce ─┤  ├─ all_reduce ─┤
    lane 2                          ├─ all_reduce ─┤
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.addons.trace.recording import EVENT_KINDS, WAITS, RankEntries, which
from nnmpi.addons.trace.summary import SENDS
from nnmpi.io.files.atomic import replaced
from nnmpi.parallel.mesh import Mesh

CATEGORY = "background"


DRAWN_AS = {
    **dict.fromkeys(("NOTE", "OPEN", "FINISH", "TIES", "TERMS", "PUSH", "ADD"), "SUM"),
    **dict.fromkeys(("GATHER", "WAIT"), "communicate"),
    "AGREE": "APPLY",
}
"""The kind of event that an operation of a schedule is drawn as, if it is not its own."""


def within_waits(works: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Returns a mask of the Works that began and ended within a single wait or send, which shows
    them already."""
    shown = events[which(events, *WAITS, *SENDS)]
    shown = shown[np.argsort(shown["began"], kind="stable")]
    last = np.searchsorted(shown["began"], works["began"], "right") - 1
    ends = np.append(shown["ended"], -np.inf)  # index -1, for Works before any event, is never late
    shows: np.ndarray = works["ended"] <= ends[last]
    return shows


def slices(entries: RankEntries, rank: int, start: float) -> Iterator[dict[str, Any]]:
    """Yields trace events for a rank's Works, on several lanes where they overlap. Times are
    relative to `start`, in seconds of the rank's clock."""
    rows = entries.works[~within_waits(entries.works, entries.events)]
    ends = list[int]()  # of the last work of each lane
    times = (nanoseconds(rows[name], start).tolist() for name in ("began", "ended"))
    for row, began, ended in zip(rows, *times, strict=True):
        lane = next((i for i, end in enumerate(ends) if end <= began), len(ends))
        where = {"pid": rank, "tid": 1 + lane}
        if lane == len(ends):
            named = {"name": "communication in the background"}
            yield {"ph": "M", **where, "name": "thread_name", "args": named}
        ends[lane : lane + 1] = [ended]
        name, algorithm, nbytes = entries.operations[row["kind"] - len(EVENT_KINDS)]
        args = {"step": int(row["step"]), "bytes": nbytes, "algorithm": algorithm}
        when = {"ts": began / 1000, "dur": (ended - began) / 1000}
        yield {"ph": "X", **where, "cat": CATEGORY, "name": name, "args": args, **when}


def counters(entries: RankEntries, rank: int, start: float) -> Iterator[dict[str, Any]]:
    """Yields trace events of two curves of a rank: the bytes of all Works in flight, after each
    change, and the memory of the process."""
    events, works, operations = entries
    sizes = np.array([nbytes for *_, nbytes in operations], np.int64)[
        works["kind"] - len(EVENT_KINDS)
    ]
    times = np.concatenate([works["began"], works["ended"]])
    order = np.argsort(times, kind="stable")
    under_way = np.cumsum(np.concatenate([sizes, -sizes])[order])
    is_known = events["memory"] > 0
    for name, at, values in (
        ("bytes under way", times[order], under_way),
        ("memory", events["ended"][is_known], events["memory"][is_known]),
    ):
        for ts, value in zip(nanoseconds(at, start).tolist(), values.tolist(), strict=True):
            counted = {"name": name, "args": {"bytes": value}}
            yield {"ph": "C", "pid": rank, "tid": 0, **counted, "ts": ts / 1000}


def nanoseconds(times: np.ndarray, start: float) -> np.ndarray:
    """Returns times relative to `start` in whole nanoseconds, so that nested events stay nested."""
    rounded: np.ndarray = np.rint((times - start) * 1e9).astype(np.int64)
    return rounded


# ---- the file


def write(
    path: str, table: np.ndarray, ranks: Sequence[RankEntries], mesh: Mesh, facts: Mapping[str, Any]
) -> None:
    """Writes the trace of all ranks to a file atomically; raises OSError if that fails. `table` is
    that of `summary.traced`; `facts`, its summary, is stored too."""
    with replaced(Path(path), "x") as file:
        file.write('{"displayTimeUnit": "ms",\n"otherData": ')
        json.dump(facts, file)
        file.write(',\n"traceEvents": [\n')
        comma = ""
        for event in _events(table, ranks, mesh):
            file.write(comma + json.dumps(event, separators=(",", ":")))
            comma = ",\n"
        file.write("\n]}\n")


def _events(
    table: np.ndarray, ranks: Sequence[RankEntries], mesh: Mesh
) -> Iterator[dict[str, Any]]:
    """Yields the trace events of all ranks, rank by rank: names, operations, arrows for messages,
    background communication, and counters."""
    start = min(rows["began"].min(initial=np.inf) for rows in (table, *(r.works for r in ranks)))
    began, arrived, ended = (
        nanoseconds(table[name], start) for name in ("began", "arrived", "ended")
    )
    firsts = np.searchsorted(table["rank"], np.arange(len(ranks) + 1)).tolist()
    for rank, (first, end) in enumerate(pairwise(firsts)):
        where = {"ph": "M", "pid": rank, "tid": 0}
        yield {**where, "name": "process_name", "args": {"name": _name(rank, mesh)}}
        yield {**where, "name": "process_sort_index", "args": {"sort_index": rank}}
        rows = slice(first, end)
        times = (x[rows].tolist() for x in (began, arrived, ended))
        for row, *when in zip(table[rows], *times, strict=True):
            yield from _operation(row, *when)
        for i in (first + np.flatnonzero(table["sent"][rows] >= 0)).tolist():
            j = int(table["sent"][i])
            arrow = {"name": "message", "cat": "message", "id": rank << 32 | i - first, "tid": 0}
            yield {"ph": "s", **arrow, "pid": int(table["rank"][j]), "ts": int(began[j]) / 1000}
            yield {"ph": "f", "bp": "e", **arrow, "pid": rank, "ts": int(ended[i]) / 1000}
        yield from slices(ranks[rank], rank, start)
        yield from counters(ranks[rank], rank, start)


def _name(rank: int, mesh: Mesh) -> str:
    if rank >= mesh.size:
        return f"rank {rank} (server)"
    where = [f"{a} {i}" for a, i in mesh.coordinates(rank).items() if mesh.axes[a] > 1]
    return f"rank {rank} ({', '.join(where)})" if where else f"rank {rank}"


def _operation(row: np.void, began: int, arrived: int, ended: int) -> Iterator[dict[str, Any]]:
    """Yields the trace events of a row of the table: one for an operation, and up to two for a
    wait, which is divided at `arrived`, when the other ranks were ready. Times are in
    nanoseconds."""
    kind = EVENT_KINDS[row["kind"]]
    args = {key: int(row[key]) for key in ("micro", "stage", "step") if row[key] >= 0}
    parts = [(DRAWN_AS.get(kind, kind), kind, began, ended)]
    if kind in WAITS:
        parts = [("wait", kind, began, arrived), ("communicate", WAITS[kind], arrived, ended)]
        parts = [part for part in parts if part[2] < part[3]]
    for category, label, begin, end in parts:
        name = f"{label}{args.get('micro', '')}"
        common = {"ph": "X", "pid": int(row["rank"]), "tid": 0, "cat": category, "name": name}
        yield {**common, "args": args, "ts": begin / 1000, "dur": (end - begin) / 1000}
