"""The file of --trace, in the trace event format of Chrome, which ui.perfetto.dev shows.

One process a rank, in order. Operations are complete events, with the waits within them: a part
of category "wait", then one of category "communicate". An arrow leads from a send to the end of the
wait for it. `nnmpi.sim.trace_file` reads the file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.mesh import Mesh
from nnmpi.run.files.atomic import replaced
from nnmpi.run.trace.recording import KINDS, WAITS
from nnmpi.run.trace.waits import Traced

LABELS = {
    "wait F": "receive F",
    "wait B": "receive B",
    "signal": "signal",
    "sums": "sum gradients",
    "agree": "agree",
    "statistics": "sum statistics",
    "settle": "barrier",
    "tensor": "sum channels",
    "gather": "gather parameters",
}
"""Of the second part of a wait."""


def write(path: str, found: Sequence[Traced], mesh: Mesh, facts: Mapping[str, Any]) -> None:
    """Writes the events of all ranks, or leaves an old file; raises OSError."""
    start = min((t.events["began"].min() for t in found if len(t.events)), default=0.0)
    with replaced(Path(path), "x") as file:
        file.write('{"displayTimeUnit": "ms",\n"otherData": ')
        json.dump(facts, file)
        file.write(',\n"traceEvents": [\n')
        separator = ""
        for event in _events(found, mesh, start):
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def _events(found: Sequence[Traced], mesh: Mesh, start: float) -> Iterator[dict[str, Any]]:
    for rank, t in enumerate(found):
        name = {"name": _name(rank, mesh)}
        yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": name}
        order = {"sort_index": rank}
        yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_sort_index", "args": order}
        yield from _of_rank(rank, t, start)
        yield from _arrows(rank, found, start)


def _name(rank: int, mesh: Mesh) -> str:
    if rank >= mesh.size:
        return f"rank {rank} (server)"
    where = [f"{a} {i}" for a, i in mesh.coordinates(rank).items() if mesh.axes[a] > 1]
    return f"rank {rank} ({', '.join(where)})" if where else f"rank {rank}"


def _of_rank(rank: int, t: Traced, start: float) -> Iterator[dict[str, Any]]:
    began, arrived, ended = (
        _ns(x, start) for x in (t.events["began"], t.arrived, t.events["ended"])
    )
    numbers = (t.events[name].tolist() for name in ("kind", "micro", "stage", "step"))
    for code, micro, stage, step, a, b, c in zip(*numbers, began, arrived, ended, strict=True):
        kind, numbered = KINDS[code], {"micro": micro, "stage": stage, "step": step}
        args = {key: value for key, value in numbered.items() if value >= 0}
        if kind in WAITS:
            parts = [("wait", kind, a, b), ("communicate", LABELS[kind], b, c)]
            parts = [part for part in parts if part[2] < part[3]]
        else:
            parts = [(kind, kind, a, c)]
        for category, label, begin, end in parts:
            name = f"{label}{micro}" if micro >= 0 else label
            known = {"ph": "X", "pid": rank, "tid": 0, "cat": category, "name": name, "args": args}
            yield {**known, "ts": begin / 1000, "dur": (end - begin) / 1000}


def _arrows(rank: int, found: Sequence[Traced], start: float) -> Iterator[dict[str, Any]]:
    own = found[rank]
    for i in np.flatnonzero(own.sent >= 0).tolist():
        sender, j = int(own.sender[i]), int(own.sent[i])
        known = {"name": "message", "cat": "message", "id": rank << 32 | i, "tid": 0}
        left, came = (
            _ns(x, start)[0] / 1000
            for x in (found[sender].events["began"][j : j + 1], own.events["ended"][i : i + 1])
        )
        yield {"ph": "s", **known, "pid": sender, "ts": left}
        yield {"ph": "f", "bp": "e", **known, "pid": rank, "ts": came}


def _ns(seconds: np.ndarray, start: float) -> list[int]:
    """Whole nanoseconds since the start: what is nested stays nested."""
    found: list[int] = np.rint((seconds - start) * 1e9).astype(np.int64).tolist()
    return found
