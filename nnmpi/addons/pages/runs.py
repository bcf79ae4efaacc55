"""The values that the page shows of a run: facts, curves, memory, and predictions with
measurements.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from nnmpi.addons.pages.curves import AXES, Curves, curves
from nnmpi.addons.pages.plot import BESIDES, LARGEST
from nnmpi.addons.planning.paper.rank_kinds import HELD
from nnmpi.io.output.messages import Event, as_text, ranks_used
from nnmpi.options.amounts import amount, duration, plural, three_or_none
from nnmpi.options.config import options
from nnmpi.options.quoting import shown
from nnmpi.parallel.arrangement.rank_names import ranks_text

LOSSES = {"loss": "training", "test_loss": "test"}
FIRST = ("accuracy", "perplexity", "bits_per_character", "bits_per_byte")
"""The panels after the losses; users' metrics follow, then speed and other figures."""

UNDRAWN = {"event", *AXES.values(), *LOSSES, "samples_per_second", "tokens_per_second"}
QUIET = ("epoch", "progress", "step", "evaluation")
"""Events whose text the page leaves out, since the curves show their numbers."""

FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "accuracy": ("accuracy", "{:.2%}".format),
    "perplexity": ("perplexity", "{:.4g}".format),
    "loss": ("training loss", "{:.4f}".format),
    "test_loss": ("test loss", "{:.4f}".format),
    "tokens_per_second": ("tokens a second", "{:,.0f}".format),
    "samples_per_second": ("samples a second", "{:,.0f}".format),
    "seconds": ("time", duration),
}
"""The most important numbers of a run: by key, their names and the functions that format them."""

MOST_SAID = 200  # events as text
MOST_PARTS = 32  # ranks along tp that are drawn
STALEST = 6  # more stale gradients share a part of the bar: there are seven colours
SMALL = 20_000_000
"""A process that grows by fewer bytes grows mostly by Python's own objects."""

ENDS = ("done", "stopped", "suspended", "failed", "complete")


def as_values(name: str, events: Sequence[Event]) -> dict[str, Any]:
    """Returns all values that the page shows of a run, given its log, as a dict for JSON; it raises
    errors of any type for events that nnmpi does not write."""
    first, last, made = events[0], events[-1], curves(events)
    return {
        "name": shown(name, 100),
        "task": shown(f"{first['model']} on {first['data']}", 100),
        "state": last["event"] if last["event"] in ENDS else "running",
        "figures": figures(events),
        "facts": facts(first, last),
        "few": made.has_few_epochs,
        **{name: columns(rows) for name, rows in made._asdict().items()},
        "blocks": [_block(block) for block in first.get("blocks", ())],
        "held": held(first.get("kinds", ())),
        "compared": sorted(compared(first, last), key=itemgetter("what")),
        "seconds": seconds(last.get("trace", {}).get("ranks", {})),
        "staleness": staleness(last.get("staleness", {})),
        "said": [as_text(e) for e in events if e["event"] not in QUIET][-MOST_SAID:],
    }


def number(value: Any) -> float | None:
    """Returns a number rounded to seven digits; None for NaN, too large values, and other types."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= LARGEST:  # of NaN too
        return None
    return value if isinstance(value, int) else float(f"{value:.7g}")


def figures(events: Sequence[Event]) -> dict[str, str]:
    """Returns the last known numbers of FIGURES, as text by name."""
    told = [e for e in events if e["event"] in (*QUIET, *ENDS)]
    last = {k: v for e in told for k, v in e.items()}
    step = told[-1].get("step", told[-1].get("steps", 0)) if told else 0
    shown_figures = {"steps": f"{step:,} of {events[0]['steps']:,}"}
    for key, (name, text) in FIGURES.items():
        if (value := number(last.get(key))) is not None:
            shown_figures[name] = text(value)
    if last.get("skipped_steps"):
        shown_figures["skipped"] = plural(last["skipped_steps"], "step")
    return shown_figures


def facts(e: Event, last: Event) -> dict[str, str]:
    """Returns the model, the data, the options and the machine of a run, as text by title."""
    given = e.get("options", {})
    where = (f"{host}: {ranks_text(tuple(ranks))}" for host, ranks in e.get("hosts", {}).items())
    others = [
        f"{o.name.replace('_', '-')} {given[o.name]}"
        for o in options()
        if given.get(o.name, o.default) != o.default
        and o.name not in ("model", "data", "batch_size")
    ]
    blas = e.get("blas", {})
    known = {
        "model": f"{e['model']}, {plural(e['parameters'], 'parameter')}",
        "data": f"{e['data']}: {e['train_samples']:,} training samples, "
        f"{e['test_samples']:,} test samples",
        "batches": f"{plural(e['steps'], 'step')} of {plural(e['batch_size'], 'sample')}, "
        f"{plural(e['epochs'], 'epoch')}",
        "numbers": f"{e['dtype']} on {e['device']}, seed {e['seed']}",
        "ranks": ", ".join(ranks_used(e)),
        "hosts": "; ".join(where),
        "options": ", ".join(others),
        "software": ", ".join(f"{k} {v}" for k, v in e.get("versions", {}).items()),
        "kernels": f"{e.get('native', '')}; BLAS {blas['kernels']} on "
        f"{plural(blas['threads'], 'thread')}: {blas['why']}" if blas else "",
        "parameters": last.get("parameters_sha256", ""),
        "error": last.get("error", ""),
    }  # fmt: skip
    return {key: shown(value, 1000) for key, value in known.items() if value}


# ---- curves


def columns(rows: Iterable[Event]) -> dict[str, list[float | None]]:
    """Returns the numbers in events as columns by key; None where an event lacks one."""
    number_rows = [{key: number(value) for key, value in row.items()} for row in rows]
    keys = dict.fromkeys(
        key for row in number_rows for key, value in row.items() if value is not None
    )
    return {key: [row.get(key) for row in number_rows] for key in keys}


def panels(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the title and the keys of each panel of curves, the loss first; a quantity that is
    zero in all runs gets none."""
    tables = [run[name] for run in runs for name in Curves._fields]
    known = dict.fromkeys(key for table in tables for key in table)
    metrics = (key for key in known if key.startswith("metric "))
    order = dict.fromkeys((*FIRST, *metrics, *BESIDES, "skipped_steps", *known))
    titles = {key: key.removeprefix("metric ").replace("_", " ") for key in order} | BESIDES
    counts = (key for key in order if key in known and key not in UNDRAWN)
    others = [key for key in counts if any(any(table.get(key, ())) for table in tables)]
    losses = {"title": "loss", "series": LOSSES, "log": True}
    return [losses, *({"title": titles[key], "series": {key: ""}} for key in others)]


# ---- memory and messages of ranks


def _block(block: Event) -> Event:
    layers = [
        {
            **{key: shown(layer[key], 60) for key in ("name", "kind", "how")},
            "parts": [(float(start), float(stop)) for start, stop in layer["parts"][:MOST_PARTS]],
        }
        for layer in block["layers"]
    ]
    return {"ranks": shown(block["ranks"]), "layers": layers}


def held(kinds: Sequence[Event]) -> Event:
    """Returns a bar chart of predicted memory, of each group of ranks that do equal work."""
    keys = {name: f"{name}_bytes" for name in HELD if any(k[f"{name}_bytes"] for k in kinds)}
    rows = ((ranks_text(tuple(k["ranks"])), [k[key] for key in keys.values()]) for k in kinds)
    return _bars([name.replace("activation", "activations") for name in keys], rows, amount)


def seconds(ranks: dict[str, Event]) -> Event:
    """Returns a bar chart of the seconds of each rank of a traced run, by activity."""
    names = list(next(iter(ranks.values()), {}))
    rows = ((rank, [spent[name] for name in names]) for rank, spent in ranks.items())
    return _bars(names, rows, duration)


def staleness(workers: dict[str, dict[str, int]]) -> Event:
    """Returns a bar chart of stale gradients; empty if none was stale. `workers` has, by worker,
    {k: how many of its gradients came after their parameters had been updated k times}."""
    most = min(max((int(s) for counts in workers.values() for s in counts), default=0), STALEST)
    rows = list[tuple[str, list[float]]]()
    for rank, counts in workers.items():
        sizes = [0.0] * (most + 1)
        for stale, times in counts.items():
            sizes[min(int(stale), most)] += times
        rows.append((rank, sizes))
    names = [*map(str, range(most)), f"{most} or more" if most == STALEST else str(most)]
    return _bars(names, rows if most else (), "{:,.0f}".format)


def _bars(
    names: list[str], rows: Iterable[tuple[str, list[float]]], text: Callable[[float], str]
) -> Event:
    """Returns a bar chart: each row, (label, sizes), is a bar whose parts have `names`."""
    bars = [
        {"ranks": ranks, "sizes": list(map(number, sizes)), "text": list(map(text, sizes))}
        for ranks, sizes in rows
    ]
    return {"names": names, "rows": bars}


def compared(e: Event, last: Event) -> Iterator[Event]:
    """Yields rows that compare predicted with measured values, from the first and last event of a
    log: the bytes and messages of a step, memory, time, and the bubble."""
    measured: Sequence[Event] = last.get("measured", ())
    kinds = () if e.get("servers") else e.get("kinds", ())  # with servers nothing is predicted
    for kind in kinds:
        ranks = ranks_text(tuple(kind["ranks"]))
        of_ranks = [measured[r] for r in kind["ranks"]] if len(measured) == e["ranks"] else []
        for axis, predicted_sent in kind["sent"].items():
            sent = (part["sent"][axis] for part in of_ranks if "sent" in part)
            pair = [predicted_sent, *sorted(sent, key=itemgetter("bytes"))[-1:]]
            if any(part["messages"] for part in pair):
                texts = [
                    f"{amount(part['bytes'])} in {three_or_none(part['messages'])}" for part in pair
                ]
                yield _row(f"sent along {axis}", ranks, [part["bytes"] for part in pair], texts)
        predicted = sum(kind[f"{name}_bytes"] for name in HELD)
        grown = max(
            (part["memory_bytes"] for part in of_ranks if "memory_bytes" in part), default=None
        )
        sizes = [predicted] if grown is None else [predicted, grown]
        of_memory = _row("memory", ranks, sizes, map(amount, sizes))
        if grown is not None and grown < SMALL:
            of_memory["error"] = "mostly Python"
        yield of_memory
    plan: Event = last.get("plan") or e.get("plan") or {}
    if times := [plan[key] for key in ("predicted_seconds", "measured_seconds") if key in plan]:
        yield _row("time of a step", "all", times, map(duration, times))
    if bubble := last.get("trace", {}).get("bubble"):
        shares = [bubble["simulated"], bubble["measured"]]
        yield _row("bubble", "all", shares, map("{:.1%}".format, shares))


def _row(label: str, ranks: str, sizes: Sequence[float], texts: Iterable[str]) -> Event:
    """Returns a row of `compared`: predicted and, if known, measured sizes, each also as text."""
    a, b = sizes[0], sizes[-1]
    error = f"{b / a - 1:+.1%}" if len(sizes) > 1 and a else ""
    numbers, words = list(map(number, sizes)), list(texts)
    return {"what": label, "ranks": ranks, "sizes": numbers, "text": words, "error": error}
