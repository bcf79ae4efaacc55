"""Formats layouts as text for --dry-run and `simulate layout`, from the dicts of
`layout_events.py`."""

from collections.abc import Iterator

from nnmpi import addons
from nnmpi.addons.planning.layout_lines import merge_blocks
from nnmpi.addons.planning.paper.rank_kinds import HELD, MANY
from nnmpi.io.output.messages import TEXTS, Event, EventTexts, gpus
from nnmpi.options.amounts import in_column, plural, three_or_none
from nnmpi.options.tables import columns
from nnmpi.parallel.arrangement.rank_names import ranks_text
from nnmpi.parallel.mesh import sizes_text

MOST_HOLDERS = 8
"""The largest number of ranks that a table of moves between layouts has as senders."""


def arranged(e: Event) -> str:
    """Returns the text of `layout_event`: what ranks hold and send, their stages and, for a change
    of layout, how many bytes each rank receives from which."""
    return "\n\n".join(filter(None, _parts(e)))


def _parts(e: Event) -> Iterator[str]:
    how = [
        f"{plural(e['ranks'], 'rank')} on {plural(e['nodes'], 'node')}: {sizes_text(e['layout'])}"
    ]
    how += gpus(e)
    texts = [*TEXTS.of_fields(e)]
    for of_ranks in (*(t.sync for t in texts), *(t.ranks for t in texts)):
        how += of_ranks(e) if of_ranks else ()
    how += [f"ZeRO {e['zero']}"] * bool(e["zero"])
    how += [f"pipeline {e['schedule']}"] * bool(e["schedule"])
    how += [f"all-reduce {e['allreduce']}"] * bool(e["allreduce"])
    work = f"batches of {e['batch_size']:,} in {plural(e['micro_batches'], 'micro-batch', 'es')}"
    notes = "".join(f"\n{note}" for note in e["notes"])
    yield (
        f"{e['model']} ({e['parameters']:,} parameters, {e['dtype']}, {e['optimizer']}) on "
        f"{', '.join(how)}\n{work}{notes}"
    )
    if "steps" in e:
        epochs, steps = plural(e["epochs"], "epoch"), plural(e["steps_per_epoch"], "step")
        yield (
            f"{e['data']}: {e['train_samples']:,} training samples, {e['test_samples']:,} test "
            f"samples, {in_column(e['data_bytes'])}; {epochs} of {steps}\n{e['layers']}"
        )
    yield f"bytes that a rank holds\n{columns(list(_memory(e)), str.rjust)}"
    if "servers" in e:
        yield "what workers and servers send depends on who waits for whom, so it is not predicted"
    elif e["ranks"] > 1:
        sent = columns(list(_sent(e)), str.rjust)
        of_first = f" (above {MANY:,} ranks, sums are those of the first)" * (e["ranks"] > MANY)
        yield f"bytes and messages that a rank sends in a step{of_first}\n{sent}"
    yield from (t.layout(e) for t in texts if t.layout)
    if e["sharded_layers"]:
        yield columns(list(_layers(e)), str.ljust, str.ljust)
    yield "\n".join(e["drawing"])
    if "moves" in e:
        yield _moves(e["moves"])


def _moves(e: Event) -> str:
    """Returns text on the bytes that each rank receives from other ranks in a change of layout."""
    axes = sizes_text(e["before"])
    zero = f", ZeRO {e['before_zero']}" * bool(e["before_zero"])
    holders = range(min(e["before_ranks"], MOST_HOLDERS))
    rows = [("ranks", "need", "receive", "send", *(f"of {r}" for r in holders))]
    alike: dict[tuple[str, ...], list[int]] = {}
    for row_of_rank in e["ranks"]:
        cells = (
            f"{in_column(s['bytes'])} in {s['messages']:,}"
            for s in (row_of_rank["received"], row_of_rank["sent"])
        )
        given = (row_of_rank["from"].get(r, 0) for r in holders)
        row = (
            in_column(row_of_rank["needed_bytes"]),
            *cells,
            *(in_column(n) if n else "-" for n in given),
        )
        alike.setdefault(row, []).append(row_of_rank["rank"])
    rows += [(ranks_text(tuple(ranks)), *row) for row, ranks in alike.items()]
    return (
        f"bytes and messages that move from {plural(e['before_ranks'], 'rank')}: {axes}{zero}\n"
        f"{columns(rows, str.rjust)}\n"
        "a run that is resumed in this layout reads these bytes from the files of these ranks"
    )


def _memory(e: Event) -> Iterator[tuple[str, ...]]:
    shown = HELD if addons.table("backups").keys() & e else HELD[:-1]
    yield "ranks", *(name if name != "activation" else "activations" for name in shown), "in all"
    for kind in e["kinds"]:
        held = [kind[f"{name}_bytes"] for name in shown]
        cells = (in_column(nbytes) if nbytes else "-" for nbytes in held)
        yield ranks_text(tuple(kind["ranks"])), *cells, in_column(sum(held))


def _sent(e: Event) -> Iterator[tuple[str, ...]]:
    all_axes = e["kinds"][0]["sent"]
    axes = [x for x in all_axes if any(kind["sent"][x]["messages"] for kind in e["kinds"])]
    yield "ranks", *(f"along {axis}" for axis in axes)
    for kind in e["kinds"]:
        sent = (kind["sent"][axis] for axis in axes)
        cells = (f"{in_column(s['bytes'])} in {three_or_none(s['messages'])}" for s in sent)
        yield ranks_text(tuple(kind["ranks"])), *cells


def _layers(e: Event) -> Iterator[tuple[str, ...]]:
    yield "layer", "kind", "sharded by", "weight", "channels of each rank", "messages", "why"
    cells = (
        (
            layer["layer"],
            layer["kind"],
            layer["how"],
            " ".join(map(str, layer["weight"])) or "none",
            " ".join(map(str, layer["channels"])) or "all",
            layer["messages"] or "none",
            layer["why"],
        )
        for layer in e["sharded_layers"]
    )
    for name, row in merge_blocks(cells):
        yield name, *row[1:]


ARRANGED = EventTexts(event=arranged)
