"""The file of --trace, in the trace event format of Chrome, which ui.perfetto.dev shows.

One process a rank, in order. Operations are complete events, with the waits within them: a part
of category "wait", then one of category "communicate". An arrow leads from a send to the end of the
wait for it. What goes on in the background is on lanes of its own, above which counters tell the
bytes under way and the memory. `nnmpi.sim.commands.trace` reads the file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.parallel.mesh import Mesh
from nnmpi.run.files.atomic import replaced
from nnmpi.run.trace.background import RankWorks, counters, nanoseconds, slices
from nnmpi.run.trace.recording import KINDS, WAITS


def write(
    path: str, table: np.ndarray, works: Sequence[RankWorks], mesh: Mesh, facts: Mapping[str, Any]
) -> None:
    """Writes the events of all ranks, or leaves an old file; raises OSError."""
    with replaced(Path(path), "x") as file:
        file.write('{"displayTimeUnit": "ms",\n"otherData": ')
        json.dump(facts, file)
        file.write(',\n"traceEvents": [\n')
        comma = ""
        for event in _events(table, works, mesh):
            file.write(comma + json.dumps(event, separators=(",", ":")))
            comma = ",\n"
        file.write("\n]}\n")


def _events(table: np.ndarray, works: Sequence[RankWorks], mesh: Mesh) -> Iterator[dict[str, Any]]:
    """Names, operations, arrows, what is in the background and counters, rank by rank."""
    start = min(rows["began"].min(initial=np.inf) for rows in (table, *(w.rows for w in works)))
    began, arrived, ended = (
        nanoseconds(table[name], start) for name in ("began", "arrived", "ended")
    )
    firsts = np.searchsorted(table["rank"], np.arange(len(works) + 1)).tolist()
    for rank, (first, end) in enumerate(pairwise(firsts)):
        known = {"ph": "M", "pid": rank, "tid": 0}
        yield {**known, "name": "process_name", "args": {"name": _name(rank, mesh)}}
        yield {**known, "name": "process_sort_index", "args": {"sort_index": rank}}
        own = slice(first, end)
        times = (x[own].tolist() for x in (began, arrived, ended))
        for row, *when in zip(table[own], *times, strict=True):
            yield from _operation(row, *when)
        for i in (first + np.flatnonzero(table["sent"][own] >= 0)).tolist():
            j = int(table["sent"][i])
            arrow = {"name": "message", "cat": "message", "id": rank << 32 | i - first, "tid": 0}
            sender = int(table["rank"][j])
            yield {"ph": "s", **arrow, "pid": sender, "ts": int(began[j]) / 1000}
            yield {"ph": "f", "bp": "e", **arrow, "pid": rank, "ts": int(ended[i]) / 1000}
        yield from slices(works[rank], table[own], rank, start)
        yield from counters(works[rank], table[own], rank, start)


def _name(rank: int, mesh: Mesh) -> str:
    if rank >= mesh.size:
        return f"rank {rank} (server)"
    where = [f"{a} {i}" for a, i in mesh.coordinates(rank).items() if mesh.axes[a] > 1]
    return f"rank {rank} ({', '.join(where)})" if where else f"rank {rank}"


def _operation(row: np.void, began: int, arrived: int, ended: int) -> Iterator[dict[str, Any]]:
    """An operation, or the parts of a wait that are not empty."""
    kind = KINDS[row["kind"]]
    args = {key: int(row[key]) for key in ("micro", "stage", "step") if row[key] >= 0}
    parts = [(kind, kind, began, ended)]
    if kind in WAITS:
        parts = [("wait", kind, began, arrived), ("communicate", WAITS[kind], arrived, ended)]
        parts = [part for part in parts if part[2] < part[3]]
    for category, label, begin, end in parts:
        name = f"{label}{args.get('micro', '')}"
        known = {"ph": "X", "pid": int(row["rank"]), "tid": 0, "cat": category, "name": name}
        yield {**known, "args": args, "ts": begin / 1000, "dur": (end - begin) / 1000}
