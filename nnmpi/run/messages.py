"""Events in words, for people on a terminal."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Event = dict[str, Any]


def _start(e: Event) -> str:
    note = f"\n{e['note']}" if e["note"] else ""
    return (
        f"{e['model']} ({e['parameters']:,} parameters) on {e['data']}: "
        f"{e['train_samples']:,} samples for training, {e['test_samples']:,} for testing, "
        f"{e['steps']:,} steps\non {', '.join(_together(e))}{note}"
    )


def _together(e: Event) -> Iterator[str]:
    """The ranks, and how they work together."""
    yield _counted(e["ranks"], "rank")
    if e.get("servers"):
        ahead = f" {e['steps_ahead']} ahead" if e["sync"] == "ssp" else ""
        yield f"{e['servers']} of them serving"
        yield f"{e['sync']}{ahead}"
    if "allreduce" in e:
        yield f"all-reduce {e['allreduce']}"
    if e.get("reproducible"):
        yield f"reproducible in {_counted(e['slices'], 'slice')}"
    for name in ("slow_rank", "jitter"):
        if name in e:
            yield f"{name.replace('_', ' ')} {e[name]}"
    if e.get("verify"):
        yield "beside one rank to verify it"


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _epoch(e: Event) -> str:
    return (
        f"epoch {e['epoch']:3d}   loss {e['loss']:.4f}   test loss {e['test_loss']:.4f}   "
        f"accuracy {e['accuracy']:.2%}   {e['samples_per_second']:,.0f} samples/s"
    )


def _dry_run(e: Event) -> str:
    names = ("parameters", "gradients", "optimizer", "activations", "data")
    sizes = (e[f"{name.removesuffix('s')}_bytes"] for name in names)
    memory = ", ".join(f"{name} {_amount(n)}" for name, n in zip(names, sizes, strict=True))
    epochs, steps = _counted(e["epochs"], "epoch"), _counted(e["steps_per_epoch"], "step")
    return (
        f"{e['layers']}\n{_start(e)}\n{epochs} of {steps} of {e['batch_size']}\n{memory}"
        f"{'; ' + e['counted'] if 'counted' in e else ''}"
    )


def _amount(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} KB"


def _verify(e: Event) -> str:
    replicas = "" if e["replicas_equal"] else "; replicas differ"
    return f"verify step {e['step']:,}: {_differences(e)} off one rank's{replicas}"


def _differences(e: Event) -> str:
    """The relative ones."""
    names = ("loss", "gradients", "parameters")
    return ", ".join(f"{name} {e[f'{name}_relative']:.3g}" for name in names)


def _result(e: Event) -> str:
    """How it went, and what else is to be known of it, a line each."""
    skipped = e["skipped_steps"]
    lines = [
        f"{e['event']}: accuracy {e['accuracy']:.2%}, loss {e['loss']:.4f} after {e['steps']:,} "
        f"steps in {e['seconds']:.1f} s, {e['samples_per_second']:,.0f} samples/s",
        f"{_counted(skipped, 'step')} left out: numbers were not finite" if skipped else "",
        _staleness(e.get("staleness", {})),
    ]
    if "largest_differences" in e:
        found = _differences(e["largest_differences"])
        lines.append(f"verified: {found} off one rank's at most (relative)")
    return "\n".join(filter(None, lines))


def _staleness(workers: Mapping[str, Mapping[str, int]]) -> str:
    """The mean over all gradients, and the most, of {worker: {staleness: how often}}."""
    rows = [(int(s), times) for counts in workers.values() for s, times in counts.items()]
    if not rows:
        return ""
    mean = sum(s * times for s, times in rows) / sum(times for _, times in rows)
    return f"staleness {mean:.1f} in the mean, {max(s for s, _ in rows)} at most"


WORDS: dict[str, Callable[[Event], str]] = {
    "start": _start,
    "verify": _verify,
    "epoch": _epoch,
    "dry-run": _dry_run,
    "done": _result,
    "stopped": _result,
}
"""What a terminal gets, by the kind of event; of any other kind, its keys and values."""


def sentence(event: Event) -> str:
    """An event in words."""
    words = WORDS.get(event["event"])
    if words is not None:
        return words(event)
    return ", ".join(f"{key} {value}" for key, value in event.items() if key != "event")
