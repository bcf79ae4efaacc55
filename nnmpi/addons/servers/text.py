"""Text for the log on runs with parameter servers."""

from collections.abc import Iterator
from typing import Any

from nnmpi.io.output.messages import EventTexts
from nnmpi.options.amounts import plural

Event = dict[str, Any]


def phrases(e: Event) -> Iterator[str]:
    """Yields phrases on servers and the synchronization of workers."""
    yield f"including {plural(e['servers'], 'server')}"
    bound = f" with staleness {e['steps_ahead']}" if e["sync"] == "ssp" else ""
    yield f"{e['sync']}{bound}"


def staleness(e: Event) -> str:
    """Returns a line on the mean and maximum staleness of gradients, the updates since their
    parameters were read, from the counts {worker: {staleness: number of gradients}}."""
    counted = e["staleness"].values()
    rows = [(int(s), times) for counts in counted for s, times in counts.items()]
    if not rows:
        return ""
    mean = sum(s * times for s, times in rows) / sum(times for _, times in rows)
    return f"mean staleness {mean:.1f}, maximum {max(s for s, _ in rows)}"


SERVERS = EventTexts(sync=phrases)
STALENESS = EventTexts(result=staleness)
