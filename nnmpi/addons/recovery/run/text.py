"""Text for the user about the loss of ranks, and about the cost of backups in a layout."""

from nnmpi.io.output import Event
from nnmpi.io.output.messages import EventTexts
from nnmpi.options.amounts import in_column, plural
from nnmpi.options.tables import columns
from nnmpi.parallel.arrangement.rank_names import ranks_text


def recovered(e: Event) -> str:
    """Returns text for a "recovered" event, that says which ranks were lost, and how the others
    continue."""
    lost = f"rank{'s' * (len(e['lost']) > 1)} {', '.join(map(str, e['lost']))}"
    steps = f"step {e['step']:,}"
    if e["steps_again"]:
        steps += f", with {plural(e['steps_again'], 'step')} to repeat"
    return f"lost {lost}: continues after {e['seconds']:.1f} s from {steps}; {e['layout']}"


def backups(e: Event) -> str:
    """Returns text for the description of a layout, that says how many bytes would be lost with a
    rank, and what backups cost."""
    if not any(kind["backups_bytes"] for kind in e["kinds"]):
        return "no backups: everything that a rank has is on another rank too"
    often = f"every {plural(e['backup'], 'step')}" if e["backup"] else "as often as --mtbf suggests"
    where = "on another node" if e["nodes"] > 1 else "on the only node, and lost with it"
    title = f"bytes that no other rank has, and that a rank sends for a backup {where}, {often}"
    rows = [("ranks", "alone", "sent")]
    for kind in e["kinds"]:
        sent, alone = kind["backup_sent"], kind["unreplicated_bytes"]
        cells = (
            (in_column(alone) if alone else "-"),
            f"{in_column(sent['bytes'])} in {sent['messages']:,}",
        )
        rows.append((ranks_text(tuple(kind["ranks"])), *cells))
    return f"{title}\n{columns(rows, str.rjust)}"


RECOVERED = EventTexts(event=recovered)
BACKUP = EventTexts(layout=backups)
