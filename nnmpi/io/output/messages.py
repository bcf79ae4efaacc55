"""The text of events, by a function for each type of event."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons import Table
from nnmpi.options.amounts import plural
from nnmpi.options.quoting import printable
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.mesh import CUT_BY_AXIS

Event = dict[str, Any]


class EventFields(NamedTuple):
    """The fields of events by which an add-on describes a run.

    start   (arrangement, batches of an epoch): fields of the start event
    layout  (arrangement): fields of the event of a layout
    """

    start: Callable[[Arrangement, int], Event] = lambda a, batches: {}
    layout: Callable[[Arrangement], Event] = lambda a: {}


EVENT_FIELDS: Table[EventFields] = Table("event_fields")
"""By an option: fields of events about it."""

RANK_FIELDS: Table[Callable[[Arrangement], Event]] = Table("rank_fields")
"""Functions that return fields of events about the ranks of an arrangement, for all runs."""


class EventTexts(NamedTuple):
    """An add-on's functions for the text of events: of a kind of event (`event`), or of a field.

    start   a line of the text of a start event with this field
    layout  a part of the text of a layout
    result  a line of the text of a run's last event
    sync    phrases on which ranks wait for which
    ranks   more phrases on how ranks are used
    """

    event: Callable[[Event], str] | None = None
    start: Callable[[Event], str] | None = None
    layout: Callable[[Event], str] | None = None
    result: Callable[[Event], str] | None = None
    sync: Callable[[Event], Iterator[str]] | None = None
    ranks: Callable[[Event], Iterator[str]] | None = None


TEXTS: Table[EventTexts] = Table("texts")
"""By a kind of event, or a field of events: the texts that an add-on has for these."""


def start_text(e: Event) -> str:
    """Returns the text for the start of a run."""
    lines = [
        f"{e['model']} ({e['parameters']:,} parameters) on {e['data']}: "
        f"{e['train_samples']:,} training samples, {e['test_samples']:,} test samples, "
        f"{e['steps']:,} steps",
        f"on {', '.join(ranks_used(e))}",
        e["note"] or "",
        _padding(e) if "padding" in e else "",
        *(_loaded(e["loaded"]) if "loaded" in e else ()),
        *(texts.start(e) for texts in TEXTS.of_fields(e) if texts.start),
        f"warning: {e['warning']}" if "warning" in e else "",
        *(f"warning: {line}" for line in e.get("advice", ())),
    ]
    return "\n".join(filter(None, lines))


def gpus(e: Event) -> Iterator[str]:
    """Yields a phrase with each rank's GPU, by its number on the node; nothing on the CPU."""
    devices = e.get("devices")
    if devices:
        more = " ..." if devices[8:] else ""
        yield f"GPUs {' '.join(map(str, devices[:8]))}{more} by rank"


def _padding(e: Event) -> str:
    """Returns text on the share of padding, with and without --bucket-by-length."""
    return (
        f"batches of similar length: {e['padding']:.1%} of their positions are padding, "
        f"{e['padding_unsorted']:.1%} without --bucket-by-length"
    )


def _loaded(e: Event) -> Iterator[str]:
    """Yields lines on a model's tensors: which were loaded from a file, and which do not fit."""
    shapes = [f"{name} {a} there, {b} here" for name, (a, b) in e["other_shapes"].items()]
    n = len(e["loaded"]) + len(e["missing"]) + len(shapes)
    yield f"{len(e['loaded'])} of the {plural(n, 'tensor')} of the model are from {e['file']}"
    for label, names in (
        ("not in the file, so with initial values", e["missing"]),
        ("of another shape, so with initial values", shapes),
        ("left over in the file", e["left_over"]),
    ):
        more = f" and {len(names) - 8} more" if names[8:] else ""
        yield from [f"  {label}: {', '.join(names[:8])}{more}"] * bool(names)


def ranks_used(e: Event) -> Iterator[str]:
    """Yields phrases on a run's ranks, GPUs, pipeline, axes and all-reduce."""
    yield plural(e["ranks"], "rank")
    yield from gpus(e)
    yield from (phrase for t in TEXTS.of_fields(e) if t.sync for phrase in t.sync(e))
    if "schedule" in e:
        yield f"pipeline {e['schedule']}"
        yield plural(e["micro_batches"], "micro-batch", "es")
        if "cut" in e:
            yield f"cut at {e['cut']}"
    for axis, cut in CUT_BY_AXIS.items():
        if axis in e:
            yield f"{cut} cut over {plural(e[axis], 'rank')}"
    if "allreduce" in e:
        yield f"all-reduce {e['allreduce']}"
    if "zero" in e:
        yield f"ZeRO {e['zero']}"
    yield from (phrase for t in TEXTS.of_fields(e) if t.ranks for phrase in t.ranks(e))


def _step(e: Event) -> str:
    """Returns the line of a "step", "progress" or "evaluation" event: loss, norm, rate, speed."""
    parts = [f"step {e['step']:,} of {e['steps']:,}"]
    for key, label, form in (
        ("loss", "loss", ".4f"),
        ("test_loss", "test loss", ".4f"),
        ("gradient_norm", "norm", ".4g"),
        ("lr", "lr", ".3g"),
    ):
        parts += [f"{label} {e[key]:{form}}"] if key in e else []
    return "   ".join([*parts, *_measured(e), *_rates(e)])


def _sample(e: Event) -> str:
    """Returns the text that a language model has generated, indented."""
    return "\n    ".join([f"text after step {e['step']:,}", *e["text"].split("\n")])


def _epoch(e: Event) -> str:
    return (
        f"epoch {e['epoch']:3d}   loss {e['loss']:.4f}   test loss {e['test_loss']:.4f}   "
        f"{'   '.join([*_measured(e), *_rates(e, 'epoch_')])}"
    )


def _measured(e: Event) -> Iterator[str]:
    """Yields phrases such as "accuracy 97.50%" on the metrics in an event."""
    if "accuracy" in e:
        yield f"accuracy {e['accuracy']:.2%}"
    if "perplexity" in e:
        yield f"perplexity {e['perplexity']:.4g}"
    for unit in ("character", "byte"):
        if f"bits_per_{unit}" in e:
            yield f"{e[f'bits_per_{unit}']:.3f} bits a {unit}"
    for name, value in e.get("metrics", {}).items():
        is_array = isinstance(value, list)
        yield f"{name} {'x'.join(map(str, np.shape(value))) if is_array else f'{value:.4g}'}"


def _rates(e: Event, of: str = "") -> Iterator[str]:
    """Yields phrases such as "1,200 samples/s", for the samples and, if counted, the tokens per
    second in the fields of an event whose names begin with `of`, such as "epoch_"."""
    for unit in ("samples", "tokens"):
        if rate := e.get(f"{of}{unit}_per_second"):  # 0 before a second step is timed
            yield f"{rate:,.0f} {unit}/s"


def _result(e: Event) -> str:
    """Returns the text of a run's end: metrics, loss, speed, then notes."""
    skipped, steps = e["skipped_steps"], plural(e["steps"], "step")
    loss = f"loss {e['loss']:.4f} after {steps} in {e['seconds']:.1f} s"
    lines = [
        f"{e['event']}: {', '.join([*_measured(e), loss, *_rates(e)])}",
        f"{plural(skipped, 'step')} skipped: loss or gradient not finite" if skipped else "",
        *(texts.result(e) for texts in TEXTS.of_fields(e) if texts.result),
    ]
    return "\n".join(filter(None, lines))


def _passes(e: Event) -> str:
    """Returns a line on whether a stage replays its passes, or why not."""
    if e["replayed"]:
        return f"stage {e['stage']}: passes are replayed, as {plural(e['calls'], 'call')}"
    return f"stage {e['stage']}: passes are not replayed: {e['reason']}"


FORMATS: dict[str, Callable[[Event], str]] = {
    "passes": _passes,
    "start": start_text,
    "progress": _step,
    "step": _step,
    "sample": _sample,
    "evaluation": _step,
    "epoch": _epoch,
    "done": _result,
    "stopped": _result,
    "failed": lambda e: "",  # the error itself is printed on stderr by the caller that catches it
}
"""The text function of each event; others are shown as keys and values."""


def as_text(event: Event, quiet: bool = False) -> str:
    """Returns the text of an event, with control characters, which file names may contain, escaped;
    with `quiet` only the warnings on checkpoints that were passed over."""
    of_add_on = TEXTS.row(event["event"])
    known = FORMATS.get(event["event"]) or (of_add_on and of_add_on.event)
    if quiet and "passed_over" in event:
        return "\n".join(map(printable, event["passed_over"]))
    if known is not None:
        return "\n".join(map(printable, known(event).split("\n")))
    return printable(", ".join(f"{key} {value}" for key, value in event.items() if key != "event"))
