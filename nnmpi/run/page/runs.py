"""What a page says of a run: facts, curves, who holds what, the predicted beside the measured."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from nnmpi.config import options
from nnmpi.drawing.tables import amount, duration, plural
from nnmpi.parallel.arrangement.alike_ranks import numbers_of
from nnmpi.quoting import shown
from nnmpi.run.report.layouts import HELD
from nnmpi.run.report.messages import Event, as_text, ranks_used
from nnmpi.run.report.plot import AXES, BESIDES, LARGEST

Rows: TypeAlias = list[tuple[str, str]]

LOSSES = {"loss": "training", "test_loss": "test"}
FIRST = ("accuracy", "perplexity", "bits_per_character", "bits_per_byte")
"""Panels behind that of losses; metrics of users follow, then those of speed and the like."""

UNDRAWN = {"event", *AXES.values(), *LOSSES, "samples_per_second", "tokens_per_second"}
QUIET = ("epoch", "progress")
"""Events whose text the page does not repeat: curves have their numbers."""

MOST_SAID = 200  # events as text
ENDS = ("done", "stopped", "suspended", "failed", "complete")


def as_values(name: str, events: Sequence[Event]) -> dict[str, Any]:
    """All of it, as JSON has it; raises ValueError for a log that is none of nnmpi."""
    try:
        return {
            "name": shown(name, 100),
            "task": shown(f"{events[0]['model']} on {events[0]['data']}", 100),
            "state": events[-1]["event"] if events[-1]["event"] in ENDS else "running",
            "figures": figures(events),
            "facts": facts(events[0], events[-1]),
            "epochs": epochs([e for e in events if e["event"] == "epoch"]),
            "progress": progress(events),
            "blocks": [_block(block) for block in events[0].get("blocks", ())],
            "held": held(events[0].get("kinds", ())),
            "compared": sorted(compared(events[0], events[-1]), key=lambda row: str(row["what"])),
            "seconds": _seconds(events[-1]),
            "said": [as_text(e) for e in events if e["event"] not in QUIET][-MOST_SAID:],
        }
    except KeyError as error:
        raise ValueError(f"its events lack {shown(error)}") from None
    except (AttributeError, OverflowError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"its events are not those of a run ({shown(error)})") from None


def number(value: Any) -> float | None:
    """A number that an axis can show, with seven digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_drawn = math.isfinite(value) and abs(value) <= LARGEST
    return (value if isinstance(value, int) else float(f"{value:.7g}")) if is_drawn else None


def figures(events: Sequence[Event]) -> Rows:
    """The numbers that one looks for first, the last ones that are known."""
    last = {k: v for e in events if e["event"] in (*QUIET, *ENDS) for k, v in e.items()}
    step = last["step"] if events[-1]["event"] == "progress" else last.get("steps", 0)
    found: Rows = [("steps", f"{step:,} of {events[0]['steps']:,}")]
    if "accuracy" in last:
        found.append(("accuracy", f"{number(last['accuracy']) or 0:.2%}"))
    if "perplexity" in last:
        found.append(("perplexity", f"{number(last['perplexity']) or math.nan:.4g}"))
    found += [
        (f"{which} loss", f"{value:.4f}")
        for key, which in LOSSES.items()
        if (value := number(last.get(key))) is not None
    ]
    found += [
        (f"{what} a second", f"{value:,.0f}")
        for what in ("tokens", "samples")
        if (value := number(last.get(f"{what}_per_second")))
    ][:1]
    if "seconds" in last:
        found.append(("time", duration(last["seconds"])))
    if last.get("skipped_steps"):
        found.append(("skipped", plural(last["skipped_steps"], "step")))
    return found


def facts(e: Event, last: Event) -> Rows:
    """What was run, and on what."""
    given = e.get("options", {})
    where = (f"{host}: {numbers_of(tuple(ranks))}" for host, ranks in e.get("hosts", {}).items())
    others = [
        f"{o.name.replace('_', '-')} {given[o.name]}"
        for o in options()
        if given.get(o.name, o.default) != o.default
        and o.name not in ("model", "data", "batch_size")
    ]
    blas = e.get("blas", {})
    found = {
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
        "advice": " ".join(map(str, e.get("advice", ()))),
        "parameters": last.get("parameters_sha256", ""),
        "error": last.get("error", ""),
    }  # fmt: skip
    return [(key, shown(value, 1000)) for key, value in found.items() if value]


# ---- curves


def epochs(rows: Sequence[Event]) -> dict[str, list[float | None]]:
    """The numbers of each epoch by key, metrics of users among them."""
    flat = [
        {**row, **{f"metric {k}": v for k, v in row.get("metrics", {}).items()}} for row in rows
    ]
    keys = dict.fromkeys(
        key for row in flat for key, value in row.items() if number(value) is not None
    )
    return {key: [number(row.get(key)) for row in flat] for key in keys}


def progress(events: Sequence[Event]) -> dict[str, list[float | None]]:
    """Numbers within epochs, which runs tell where there is no bar; an epoch has so many steps."""
    first, rows = events[0], [e for e in events if e["event"] == "progress"]
    a_step = first["epochs"] / first["steps"] if first["steps"] else 0
    return {
        "epoch": [number(a_step * e["step"]) for e in rows],
        "steps": [number(e["step"]) for e in rows],
        "loss": [number(e["loss"]) for e in rows],
    }


def panels(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is drawn of these runs: a title, and the series by their keys."""
    known = dict.fromkeys(key for run in runs for key in run["epochs"])
    metrics = (key for key in known if key.startswith("metric "))
    order = dict.fromkeys((*FIRST, *metrics, *BESIDES, "skipped_steps", *known))
    losses = {"title": "loss", "series": LOSSES, "log": True}
    others = [
        {
            "title": BESIDES.get(key, key.removeprefix("metric ").replace("_", " ")),
            "series": {key: ""},
        }
        for key in order
        if key in known and key not in UNDRAWN
    ]
    return [losses, *others]


# ---- what ranks hold and send


def _block(block: Event) -> Event:
    layers = [
        {
            **{key: shown(layer[key], 60) for key in ("name", "kind", "how")},
            "parts": [(float(start), float(stop)) for start, stop in layer["parts"][:MOST_PARTS]],
        }
        for layer in block["layers"]
    ]
    return {"ranks": shown(block["ranks"]), "layers": layers}


MOST_PARTS = 32  # ranks along tp that are drawn


SMALL = 20_000_000
"""Bytes by which a process grows that are mostly Python's own."""


def held(kinds: Sequence[Event]) -> Event:
    """The bytes that each kind of ranks holds, as predicted."""
    names = [name for name in HELD if any(kind[f"{name}_bytes"] for kind in kinds)]
    return {
        "names": [name if name != "activation" else "activations" for name in names],
        "rows": [
            {
                "ranks": numbers_of(tuple(kind["ranks"])),
                "bytes": [number(kind[f"{name}_bytes"]) for name in names],
                "text": [amount(kind[f"{name}_bytes"]) for name in names],
            }
            for kind in kinds
        ],
    }


def compared(e: Event, last: Event) -> Iterator[Event]:
    """Bytes and messages of a step, memory, time and the bubble: predicted, and measured."""
    measured: Sequence[Event] = last.get("measured", ())
    kinds = () if e.get("servers") else e.get("kinds", ())  # what they send nobody knows before
    for kind in kinds:
        ranks = numbers_of(tuple(kind["ranks"]))
        own = [measured[r] for r in kind["ranks"]] if len(measured) == e["ranks"] else []
        for axis, said in kind["sent"].items():
            found = [one["sent"][axis] for one in own if "sent" in one]
            most = max(found, key=lambda sent: sent["bytes"], default=None)
            if said["messages"] or (most and most["messages"]):
                sizes = said["bytes"], most and most["bytes"]
                yield _row(f"sent along {axis}", ranks, *sizes, _sent(said), most and _sent(most))
        predicted = sum(kind[f"{name}_bytes"] for name in HELD)
        grown = max((one["memory_bytes"] for one in own if "memory_bytes" in one), default=None)
        yield _row("memory", ranks, predicted, grown, *_texts(amount, predicted, grown))
    plan: Event = last.get("plan") or e.get("plan") or {}
    if "predicted_seconds" in plan:
        times = plan["predicted_seconds"], plan.get("measured_seconds")
        yield _row("time of a step", "all", *times, *_texts(duration, *times))
    if found := last.get("trace", {}).get("bubble"):
        bubbles = found["simulated"], found["measured"]
        yield _row("bubble", "all", *bubbles, *_texts("{:.1%}".format, *bubbles))


def _texts(text: Callable[[float], str], a: float, b: float | None) -> tuple[str, str | None]:
    return text(a), None if b is None else text(b)


def _row(
    what: str, ranks: str, a: float, b: float | None, predicted: str, measured: str | None
) -> Event:
    error = f"{b / a - 1:+.1%}" if a and b is not None else ""
    if what == "memory" and b is not None and b < SMALL:
        error = "mostly Python"
    numbers = {"predicted": number(a), "measured": number(b)}
    return {"what": what, "ranks": ranks, **numbers, "text": [predicted, measured or "", error]}


def _sent(e: Event) -> str:
    return f"{amount(e['bytes'])} in {e['messages']:,}"


def _seconds(last: Event) -> Event:
    """Where the time of each rank went, if the run was traced."""
    ranks = last.get("trace", {}).get("ranks", {})
    names = list(next(iter(ranks.values()), {}))
    return {
        "names": names,
        "rows": [
            {"ranks": rank, "bytes": [number(spent[k]) for k in names],
             "text": [duration(spent[k]) for k in names]}
            for rank, spent in ranks.items()
        ],
    }  # fmt: skip
