"""The steps of a trace as columns, which take a quarter of the room that its events take."""

from collections.abc import Iterable, Mapping
from typing import Any

from nnmpi.sim.commands.trace import TraceFile
from nnmpi.sim.drawing.timeline import Span, Timeline, kinds, style

MOST = 200_000  # spans: about 6 MB


def as_values(trace: TraceFile) -> dict[str, Any]:
    """What ranks did in all steps, or in as many around the median one, in milliseconds."""
    steps = shown_steps(trace)
    found = trace.timeline(steps[0], len(steps))
    start = min(span.start for k in steps for span in trace.steps[k])
    simulated = tuple(
        span._replace(start=1e3 * span.start, end=1e3 * span.end)
        for span in trace.simulated
        if span.rank < found.ranks
    )
    both = found, Timeline(simulated, found.ranks)
    numbers = {kind: i for i, kind in enumerate(kinds(both))}
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
        "styles": [(kind, *style(kind)) for kind in numbers],
        "measured": columns(found.spans, numbers),
        "simulated": columns(simulated, numbers),
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


def columns(spans: Iterable[Span], numbers: Mapping[str, int]) -> dict[str, list[float]]:
    """Spans by rank and time, with the number of their kind."""
    rows = sorted(spans, key=lambda span: (span.rank, span.start))
    return {
        "rank": [span.rank for span in rows],
        "kind": [numbers[span.kind] for span in rows],
        "micro": [span.micro for span in rows],
        "stage": [span.stage for span in rows],
        "start": [round(span.start, 4) for span in rows],
        "length": [round(span.end - span.start, 4) for span in rows],
    }
