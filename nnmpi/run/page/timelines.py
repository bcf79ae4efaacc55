"""The steps of a trace as columns, which take a quarter of the room that its events take."""

from collections.abc import Iterable
from typing import Any

from nnmpi.drawing.timeline import KINDS, Span, Style, style
from nnmpi.sim.commands.trace import TraceFile

MOST = 200_000  # spans: about 6 MB


def as_values(trace: TraceFile) -> dict[str, Any]:
    """What ranks did in all steps, or in as many around the median one, in milliseconds."""
    steps = shown_steps(trace)
    found = trace.timeline(steps[0], len(steps))
    start = min(span.start for k in steps for span in trace.steps[k])
    simulated = [s._replace(start=1e3 * s.start, end=1e3 * s.end) for s in trace.simulated]
    return {
        "name": trace.path.name,
        "ranks": found.ranks,
        "end": found.end,
        "median": trace.median_step(),
        "steps": [
            [k, (min(s.start for s in own) - start) / 1e3, (max(s.end for s in own) - start) / 1e3]
            for k in steps
            for own in [trace.steps[k]]
        ],
        "measured": columns(found.spans),
        "simulated": columns(span for span in simulated if span.rank < found.ranks),
    }


def shown_steps(trace: TraceFile) -> range:
    """All steps, if their spans are not too many; they follow each other."""
    first = last = trace.median_step()
    room = MOST - len(trace.steps[first])
    while room >= 0:
        near = [k for k in (last + 1, first - 1) if k in trace.steps]
        if not near:
            break
        room -= sum(len(there.get(near[0], ())) for there in (trace.steps, trace.background))
        first, last = min(first, near[0]), max(last, near[0])
    return range(first, last + 1)


def columns(spans: Iterable[Span]) -> dict[str, Any]:
    """Spans by rank and time; `kinds` are the names of the numbers in `kind`."""
    rows = sorted(spans, key=lambda span: (span.rank, span.start))
    kinds = sorted({span.kind for span in rows})
    numbers = {kind: i for i, kind in enumerate(kinds)}
    return {
        "kinds": kinds,
        "rank": [span.rank for span in rows],
        "kind": [numbers[span.kind] for span in rows],
        "micro": [span.micro for span in rows],
        "stage": [span.stage for span in rows],
        "start": [round(span.start, 4) for span in rows],
        "length": [round(span.end - span.start, 4) for span in rows],
    }


def styles(timelines: Iterable[dict[str, Any]]) -> dict[str, Style]:
    """How the kinds that occur are drawn, in the order of the table."""
    seen = {k for t in timelines for which in ("measured", "simulated") for k in t[which]["kinds"]}
    order = [*(kind for kind in KINDS if kind in seen), *sorted(seen - KINDS.keys())]
    return {kind: style(kind) for kind in order}
