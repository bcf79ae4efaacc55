"""An arrangement as an event, and as text: what ranks hold and send, and who has what."""

from collections.abc import Iterator
from itertools import pairwise

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.drawing import as_lines
from nnmpi.parallel.arrangement.kinds import Kind, kinds, numbers_of
from nnmpi.parallel.arrangement.traffic import Traffic
from nnmpi.run.report.text import Event, counted, size, table

SUMMED = ("replicas", "pipeline")
"""The strategies whose gradients an all-reduce sums."""


def layout_event(a: Arrangement) -> Event:
    """The arrangement in figures; a step is over a whole batch."""
    config, graph = a.config, a.graph
    return {
        "event": "layout",
        "model": config.model,
        "parameters": sum(v.size for v in graph.variables if v.is_parameter),
        "ranks": a.ranks,
        "nodes": len({*a.cluster.nodes}),
        "layout": a.mesh.axes,
        "servers": a.servers,
        "strategy": a.strategy,
        "zero": config.zero,
        "schedule": config.schedule if a.strategy in ("pipeline", "pipedream") else None,
        "batch_size": config.batch_size,
        "micro_batches": min(config.micro_batches, config.batch_size),
        "dtype": config.dtype,
        "optimizer": config.optimizer,
        "sync": config.sync,
        "slices": config.slices if config.reproducible else None,
        "allreduce": a.algorithm if a.mesh.axes["dp"] > 1 and a.strategy in SUMMED else None,
        "cut": ",".join(map(str, a.division.begins)) or None,
        "notes": list(graph.notes),
        "kinds": [_figures(kind) for kind in kinds(a, config.batch_size)],
        "sharded_layers": [
            {
                "layer": layer.path,
                "kind": layer.kind,
                "how": layer.how,
                "weight": list(layer.sizes),
                "channels": [stop - start for start, stop in pairwise(layer.bounds)],
                "messages": layer.messages,
                "why": layer.why,
            }
            for layer in a.sharding.layers
        ],
        "drawing": list(as_lines(a)),
    }


def _figures(kind: Kind) -> Event:
    """The figures of a kind of rank."""
    sent = {axis: there._asdict() for axis, there in kind.traffic._asdict().items()}
    return {
        "ranks": list(kind.ranks),
        "stages": list(kind.stages),
        **{f"{name}_bytes": value for name, value in kind.memory._asdict().items()},
        "activation_bytes": kind.activations,
        "sent": sent,
    }


def as_text(e: Event) -> str:
    """The event as text."""
    return "\n\n".join(filter(None, _parts(e)))


def _parts(e: Event) -> Iterator[str]:
    axes = " x ".join(f"{axis} {n}" for axis, n in e["layout"].items() if n > 1) or "one rank"
    how = [f"{counted(e['ranks'], 'rank')} on {counted(e['nodes'], 'node')}: {axes}"]
    how += [f"including {counted(e['servers'], 'server')}, {e['sync']}"] * bool(e["servers"])
    how += [f"reproducible with {counted(e['slices'] or 0, 'slice')}"] * bool(e["slices"])
    how += [f"ZeRO {e['zero']}"] * bool(e["zero"])
    how += [f"pipeline {e['schedule']}"] * bool(e["schedule"])
    how += [f"all-reduce {e['allreduce']}"] * bool(e["allreduce"])
    work = f"batches of {e['batch_size']:,} in {counted(e['micro_batches'], 'micro-batch', 'es')}"
    notes = "".join(f"\n{note}" for note in e["notes"])
    yield (
        f"{e['model']} ({e['parameters']:,} parameters, {e['dtype']}, {e['optimizer']}) on "
        f"{', '.join(how)}\n{work}{notes}"
    )
    if "steps" in e:
        epochs, steps = counted(e["epochs"], "epoch"), counted(e["steps_per_epoch"], "step")
        yield (
            f"{e['data']}: {e['train_samples']:,} training samples, {e['test_samples']:,} test "
            f"samples, {size(e['data_bytes'])}; {epochs} of {steps}\n{e['layers']}"
        )
    yield f"bytes that a rank holds\n{table(list(_memory(e)))}"
    if e["servers"]:
        yield "what workers and servers send depends on who waits for whom, and is not counted"
    elif e["ranks"] > 1:
        yield f"bytes and messages that a rank sends in a step\n{table(list(_sent(e)))}"
    if e["sharded_layers"]:
        yield table(list(_layers(e)), str.ljust)
    yield "\n".join(e["drawing"])


HELD = (
    "parameters", "gradients", "optimizer", "buffers", "slots", "windows", "activation",
)  # fmt: skip


def _memory(e: Event) -> Iterator[tuple[str, ...]]:
    yield "ranks", *(name if name != "activation" else "activations" for name in HELD), "in all"
    for kind in e["kinds"]:
        held = [kind[f"{name}_bytes"] for name in HELD]
        yield numbers_of(tuple(kind["ranks"])), *map(_or_none, held), size(sum(held))


def _or_none(nbytes: int) -> str:
    return size(nbytes) if nbytes else "-"


def _sent(e: Event) -> Iterator[tuple[str, ...]]:
    axes = [x for x in Traffic._fields if any(kind["sent"][x]["messages"] for kind in e["kinds"])]
    yield "ranks", *(f"along {axis}" for axis in axes)
    for kind in e["kinds"]:
        sent = (kind["sent"][axis] for axis in axes)
        cells = (f"{size(s['bytes'])} in {s['messages']:,}" for s in sent)
        yield numbers_of(tuple(kind["ranks"])), *cells


def _layers(e: Event) -> Iterator[tuple[str, ...]]:
    yield "layer", "kind", "sharded by", "weight", "channels of each rank", "messages", "why"
    for layer in e["sharded_layers"]:
        sizes, channels = (" ".join(map(str, layer[name])) for name in ("weight", "channels"))
        names = layer["layer"], layer["kind"], layer["how"]
        said = sizes or "none", channels or "all", layer["messages"] or "none", layer["why"]
        yield (*names, *said)
