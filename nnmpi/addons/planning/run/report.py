"""The output of nnmpi.plan: a JSON object, and the same as a table."""

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Any

from nnmpi.addons.planning.options import TRAINED
from nnmpi.addons.planning.run.planning import DATA, MEETINGS, SUMS, FoundLayouts, NetworkNeed
from nnmpi.addons.planning.search import PricedLayout
from nnmpi.addons.planning.step_time import StepTime
from nnmpi.addons.simulator.replicas import SHARES
from nnmpi.io.output import Event
from nnmpi.options import value_forms
from nnmpi.options.amounts import amount, plural, three_or_none
from nnmpi.options.cli import layout_file
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import shown
from nnmpi.options.tables import columns

TERMS = StepTime._fields


def as_event(layouts: FoundLayouts, needs: Iterable[NetworkNeed], file: str | None = None) -> Event:
    """Returns what `nnmpi.plan` prints with --json: the fastest layouts, the best first, the
    fastest one of each single strategy, and the command that trains with the best one.

    needs   how fast the network between nodes must be, for the field `network`
    file    the path of the best layout's file, if it was written, for the printed command
    """
    best, request = layouts.search.best[0], layouts.request
    return {
        "event": "plan",
        "title": layouts.title,
        "batch_size": layouts.config.batch_size,
        **request._asdict(),
        "notes": layouts.notes,
        "counts": layouts.search.counts._asdict(),
        "refused": dict(layouts.search.refused),
        "best": [_row(layouts, planned, best) for planned in layouts.search.best],
        "pure": {
            name: _row(layouts, planned, best) for name, planned in layouts.search.pure.items()
        },
        "network": [need._asdict() for need in needs],
        "command": " ".join(command(layouts, best, file)),
    }


def _row(layouts: FoundLayouts, planned: PricedLayout, best: PricedLayout) -> Event:
    """Returns one layout as JSON values, with the reason why it is not the best one."""
    return {
        "layout": planned.options,
        "flags": planned.flags,
        "seconds": planned.time.seconds,
        "samples_per_second": layouts.config.batch_size / planned.time.seconds,
        "bytes": planned.nbytes,
        "sent_bytes": planned.sent.bytes / planned.period,
        "sent_messages": planned.sent.messages / planned.period,
        "fits": planned.nbytes <= layouts.request.limit,
        **planned.time._asdict(),
        "why": why(planned, best, layouts.request.limit),
    }


def why(planned: PricedLayout, best: PricedLayout, memory: float) -> str:
    """Returns why a layout is not the best: memory, the term in which it is slowest, or, if it is
    faster, that measurements differ by more. "" for the best one."""
    if planned.nbytes > memory:
        return f"memory: {amount(planned.nbytes - memory)} too much"
    if planned.time.seconds < best.time.seconds:
        return "within the spread"
    slower = [(b - a, name) for name, a, b in zip(TERMS, best.time, planned.time, strict=True)]
    more, name = max(slower)
    return f"{name} +{_number(1e3 * more)} ms" if planned.layout != best.layout and more > 0 else ""


GIVEN = (*options(TRAINED), *SUMS, *MEETINGS)
"""Options that a plan does not change, and that the printed command of a run repeats."""


def command(layouts: FoundLayouts, planned: PricedLayout, file: str | None = None) -> Iterator[str]:
    """Yields the words of the command that runs this layout, from its file if there is one. The
    predicted division into stages (cut) is among them only if the model's layers were measured;
    otherwise the run measures them and cuts by itself."""
    yield f"mpirun -n {layouts.request.ranks} python -m nnmpi.train"
    config, plain = layouts.config, Config()
    for option in GIVEN:
        value = getattr(config, option.name)
        if option.name == "data" and layouts.request.vocabulary is not None:
            value = DATA
        if value != getattr(plain, option.name) or option.name in ("model", "data"):
            flag = option.name.replace("_", "-")
            if isinstance(value, bool):
                yield f"--{flag}" if value else f"--no-{flag}"
            else:
                yield f"--{flag}={quote(str(value))}"
    if file is not None:
        yield f"--layout {quote(file)}"
        return
    yield planned.flags
    if planned.cut and layouts.is_measured:
        yield f"--cut {planned.cut}"


def as_toml(layouts: FoundLayouts, planned: PricedLayout) -> str:
    """Returns a layout as the text of a file for --layout."""
    cut = planned.cut if layouts.is_measured else None
    ways = value_forms.layout(planned.layout.layout).ways if planned.layout.layout else {}
    return layout_file(Config(**{**planned.options, "cut": cut, "layout": None}), ways)


SMALL = 1e-6
"""Milliseconds below which a time is printed as 0: less than any clock shows."""

WIDEST = 100
"""The most characters of the flags of a layout in the table; longer ones are cut off."""

HEAD = ["layout", "ms a step", "samples/s", "memory", "sent", "messages", *TERMS, "loses by"]


def as_text(e: Event) -> str:
    """Returns the plan as a table for the user, made from its event."""
    counts, pure = e["counts"], e["pure"]
    memory = f", {amount(e['memory'])} a rank" if e["memory"] else ""
    best = {row["flags"] for row in e["best"]}
    alone = [_cells(row, f"{name}: ") for name, row in pure.items() if row["flags"] not in best]
    rows = [HEAD, *(_cells(row) for row in e["best"]), *alone]
    lines = columns(rows).splitlines()
    if alone:
        lines.insert(1 + len(e["best"]), "with one kind of parallelism only:")
    return "\n".join([
        f"{e['title']}, {plural(e['batch_size'], 'sample')} a step{memory}",
        *(f"note: {note}" for note in e["notes"]),
        "",
        *lines,
        "",
        *_network(e["network"]),
        f"{plural(counts['looked'], 'layout')} examined; {counts['pruned']:,} cannot be faster by "
        f"their bound, {counts['refused']:,} are impossible, {counts['too_large']:,} are too large",
        f"run the first one with: {e['command']}",
    ])  # fmt: skip


def _network(needs: list[dict[str, Any]]) -> Iterator[str]:
    """Yields lines on the network speed that layouts need; none on a single node."""
    if not needs:
        return
    shares = [f"{share:.0%}" for share in SHARES]
    rows = [["Gbit/s between nodes for computing", "ms a step", *shares]]
    for need in needs:
        cells = [three_or_none(need["gbit"][share]) for share in shares]
        flags = shown(need["layout"], WIDEST)
        rows.append([flags, _number(1e3 * need["seconds"]), *cells])
    yield from (*columns(rows).splitlines(), "")


def _number(x: float) -> str:
    """Formats a number with four significant digits, or all before the point."""
    return f"{x:,.0f}" if x >= 1000 else f"{x:.4g}" if x >= SMALL else "0"


def _cells(row: dict[str, Any], name: str = "") -> list[str]:
    seconds, *terms = (_number(1e3 * row[term]) for term in ("seconds", *TERMS))
    speed = _number(row["samples_per_second"])
    flags = shown(row["flags"], WIDEST)
    sent = amount(row["bytes"]), amount(row["sent_bytes"]), three_or_none(row["sent_messages"])
    return [f"{name}{flags}", seconds, speed, *sent, *terms, row["why"]]
