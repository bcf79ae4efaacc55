"""Formats the summary of a trace as text, which is printed at the end of a run."""

from typing import Any

from nnmpi.io.output.messages import EventTexts
from nnmpi.options.tables import columns


def times(e: dict[str, Any]) -> str:
    """Returns a table of the seconds of each rank, and a line on the bubble."""
    trace = e["trace"]
    rows = [["seconds", "computing", "communicating", "waiting", "other"]]
    for rank, seconds in trace["ranks"].items():
        rows.append([f"rank {rank}", *(f"{x:.3f}" for x in seconds.values())])
    of = f" of {e['steps']:,}" if trace["steps"] < e["steps"] else ""
    title = f"trace of {trace['steps']:,}{of} steps in {trace['file']}, which ui.perfetto.dev shows"
    lines = [title, columns(rows)]
    if "bubble" in trace:
        bubble = trace["bubble"]
        shares = {
            "": bubble["measured"],
            "simulated with these times ": bubble["simulated"],
            "with equal stages ": bubble.get("formula"),
        }
        shown = [f"{name}{x:.1%}" for name, x in shares.items() if x is not None]
        lines.append(f"bubble {', '.join(shown)}")
    return "\n".join(lines)


TEXTS = EventTexts(result=times)
