"""Formats text about activations that are moved to disk or recomputed, from the field `residences`
of the start event."""

from collections import Counter
from typing import Any

from nnmpi.io.output.messages import EventTexts
from nnmpi.options.amounts import duration, in_column, plural
from nnmpi.options.tables import columns


def beyond_memory(event: dict[str, Any]) -> str:
    """Returns a line about a run with --memory: the numbers of units swapped and recomputed, the
    disk's speeds, and the predicted time of a micro-batch."""
    e = event["residences"]
    of = Counter(unit["residence"] for unit in e["units"])
    disk = " and ".join(f"{in_column(e[f'disk_{way}'])}/s" for way in ("write", "read"))
    swapped = e["swapped_state"]
    state = f", {in_column(swapped)} of optimizer state on disk" if swapped else ""
    return (
        f"memory {e['memory']}, {in_column(e['for_activations'])} for activations: of "
        f"{plural(len(e['units']), 'unit')} {of['swap']} swapped to disk ({disk}, written and "
        f"read), {of['recompute']} recomputed{state}; predicted: a micro-batch takes "
        f"{duration(e['seconds'])}, with enough memory {duration(e['seconds_kept'])}"
    )


def units(event: dict[str, Any]) -> str:
    """Returns the line of `beyond_memory`, and a table with a row for each unit."""
    rows = [("unit", "bytes", "time", "activations")]
    for e in event["residences"]["units"]:
        rows.append((e["unit"], in_column(e["bytes"]), duration(e["seconds"]), e["residence"]))
    return f"{beyond_memory(event)}\n{columns(rows)}"


TEXTS = EventTexts(start=beyond_memory, layout=units)
