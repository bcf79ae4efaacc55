"""Events as text."""

from collections.abc import Callable, Iterator, Mapping

from nnmpi.quoting import printable
from nnmpi.run.report import layout
from nnmpi.run.report.text import Event, counted
from nnmpi.sim.show import columns


def _start(e: Event) -> str:
    note = f"\n{e['note']}" if e["note"] else ""
    return (
        f"{e['model']} ({e['parameters']:,} parameters) on {e['data']}: "
        f"{e['train_samples']:,} training samples, {e['test_samples']:,} test samples, "
        f"{e['steps']:,} steps\non {', '.join(_layout(e))}{note}"
    )


def _layout(e: Event) -> Iterator[str]:
    """The ranks, and how they are used."""
    yield counted(e["ranks"], "rank")
    if e.get("servers"):
        yield f"including {counted(e['servers'], 'server')}"
        bound = f" with staleness {e['steps_ahead']}" if e["sync"] == "ssp" else ""
        yield f"{e['sync']}{bound}"
    if "schedule" in e:
        yield f"pipeline {e['schedule']}"
        yield counted(e["micro_batches"], "micro-batch", "es")
        if "cut" in e:
            yield f"cut at {e['cut']}"
    if "tp" in e:
        yield f"layers cut over {counted(e['tp'], 'rank')}"
    if "allreduce" in e:
        yield f"all-reduce {e['allreduce']}"
    if "zero" in e:
        yield f"ZeRO {e['zero']}"
    if e.get("reproducible"):
        yield f"reproducible with {counted(e['slices'], 'slice')}"
    for name in ("slow_rank", "jitter"):
        if name in e:
            yield f"{name.replace('_', ' ')} {e[name]}"
    if e.get("verify"):
        yield "verified against one rank"


def _progress(e: Event) -> str:
    return (
        f"step {e['step']:,} of {e['steps']:,}   loss {e['loss']:.4f}   "
        f"{e['samples_per_second']:,.0f} samples/s"
    )


def _epoch(e: Event) -> str:
    return (
        f"epoch {e['epoch']:3d}   loss {e['loss']:.4f}   test loss {e['test_loss']:.4f}   "
        f"{'   '.join([*_measured(e), ''])}{e['epoch_samples_per_second']:,.0f} samples/s"
    )


def _measured(e: Event) -> Iterator[str]:
    """The metrics, of which only losses of classes have the accuracy."""
    if "accuracy" in e:
        yield f"accuracy {e['accuracy']:.2%}"
    for name, value in e.get("metrics", {}).items():
        yield f"{name} {value:.4g}"


def _verify(e: Event) -> str:
    replicas = "" if e["replicas_equal"] else "; replicas differ"
    return f"verify step {e['step']:,}: relative differences: {_differences(e)}{replicas}"


def _differences(e: Event) -> str:
    """The relative differences between the layout and one rank."""
    names = ("loss", "gradients", "parameters")
    return ", ".join(f"{name} {e[f'{name}_relative']:.3g}" for name in names)


def _result(e: Event) -> str:
    """The metrics, and a line for each of the other results."""
    skipped = e["skipped_steps"]
    lines = [
        f"{e['event']}: {', '.join([*_measured(e), ''])}loss {e['loss']:.4f} after {e['steps']:,} "
        f"steps in {e['seconds']:.1f} s, {e['samples_per_second']:,.0f} samples/s",
        f"{counted(skipped, 'step')} skipped: loss or gradient not finite" if skipped else "",
        _staleness(e.get("staleness", {})),
    ]
    if "largest_differences" in e:
        found = _differences(e["largest_differences"])
        lines.append(f"verified: largest relative differences: {found}")
    if "trace" in e:
        lines.append(_trace(e["trace"], e["steps"]))
    return "\n".join(filter(None, lines))


def _trace(e: Event, steps: int) -> str:
    """What each rank did, in seconds, and the bubble of a pipeline."""
    rows = [["seconds", "computing", "communicating", "waiting", "other"]]
    for rank, times in e["ranks"].items():
        rows.append([f"rank {rank}", *(f"{x:.3f}" for x in times.values())])
    of = f" of {steps:,}" if e["steps"] < steps else ""
    what = f"trace of {e['steps']:,}{of} steps in {e['file']}, which ui.perfetto.dev shows"
    lines = [what, columns(rows)]
    if "bubble" in e:
        found = e["bubble"]
        lines.append(f"bubble {found['measured']:.1%}, simulated {found['simulated']:.1%}")
    return "\n".join(lines)


def _staleness(workers: Mapping[str, Mapping[str, int]]) -> str:
    """Mean and maximum over all gradients, from {worker: {staleness: how often}}."""
    rows = [(int(s), times) for counts in workers.values() for s, times in counts.items()]
    if not rows:
        return ""
    mean = sum(s * times for s, times in rows) / sum(times for _, times in rows)
    return f"mean staleness {mean:.1f}, maximum {max(s for s, _ in rows)}"


FORMATS: dict[str, Callable[[Event], str]] = {
    "start": _start,
    "verify": _verify,
    "progress": _progress,
    "epoch": _epoch,
    "dry-run": layout.as_text,
    "done": _result,
    "stopped": _result,
    "failed": lambda e: "",  # whoever catches the error prints it on stderr
}
"""The text of each kind of event; of other kinds, keys and values are shown."""


def as_text(event: Event) -> str:
    """The text of an event, without control characters, which names of files may have."""
    known = FORMATS.get(event["event"])
    if known is not None:
        return "\n".join(map(printable, known(event).split("\n")))
    return printable(", ".join(f"{key} {value}" for key, value in event.items() if key != "event"))
