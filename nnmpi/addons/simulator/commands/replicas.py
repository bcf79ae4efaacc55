"""The part of `sync` on data parallelism, local steps, gossip and compression."""

import argparse
from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any, NamedTuple

from nnmpi.addons.simulator.codecs import CODECS
from nnmpi.addons.simulator.drawing.neighbours import neighbours
from nnmpi.addons.simulator.drawing.svg import svg
from nnmpi.addons.simulator.drawing.timeline import Timeline
from nnmpi.addons.simulator.network import Record, add_number, check_count, check_number
from nnmpi.addons.simulator.replicas import (
    GBIT,
    SHARES,
    Model,
    Sent,
    all_reduce,
    gbit_needed,
    seconds_a_step,
    steps,
)
from nnmpi.collectives.gossip import GRAPHS
from nnmpi.options.amounts import amount, duration, plural, three_or_none
from nnmpi.options.quoting import quoted, shown
from nnmpi.options.tables import table
from nnmpi.schedules.local_steps import LocalSteps

BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "float4": 4}
"""Bits of a number that is sent; scales of int8 and float4 are left out."""

SYNCS = "local", "gossip"

MOST_REPLICAS, MOST_STEPS = 4096, 2000  # simulated in seconds
DRAWN = 4  # steps that a timeline shows after the first period, and what it delays


class Row(NamedTuple):
    """A row of the table, for one method by which replicas exchange parameters or gradients.

    sent       the traffic of one exchange of all layers
    gap        the spectral gap of gossip, which says how fast replicas agree; 1: at once
    """

    name: str
    sent: Sent
    schedule: LocalSteps = LocalSteps()
    gap: float | None = None


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of local steps, gossip and compressed gradients."""
    sent = p.add_argument_group("what replicas send (--sync local, gossip)")
    sent.add_argument("--parameters", type=float, metavar="N", help="of the model, such as 1e9")
    add_number(sent, "--layers", "24", "equal layers of the model", int)
    add_number(sent, "--step-seconds", "0.1", "computing of a step")
    add_number(sent, "--replicas", "2", "replicas of the model", int)
    add_number(sent, "--every", "100", "steps between exchanges", int, "H")
    add_number(sent, "--fragments", "1", "streaming: one every H/P steps", int, "P")
    add_number(sent, "--apply-after", "0", "steps until a fragment is used", int, "TAU")
    about = "of gradients, and of parameters in gossip (default float32, as in training)"
    sent.add_argument("--dtype", choices=BITS, default="float32", help=about)
    sent.add_argument("--outer-dtype", choices=BITS, help="of local steps (default: --dtype)")
    for option in CODECS.where:
        about = (
            "also gradients sent so, of layers that are square matrices (nnmpi.train --dry-run "
            "counts those of a model); may be repeated: topk:0.01, powersgd:4"
        )
        sent.add_argument(f"--{option}", action="append", default=[], metavar="CODEC", help=about)
    sent.add_argument("--graph", choices=GRAPHS, help="of gossip (default: all)")
    add_number(sent, "--gbit", "10", "Gbit/s of the link of a replica")
    add_number(sent, "--alpha", "0", "seconds per message")


def run(options: argparse.Namespace) -> Any:
    """Returns a table of methods, of --sync or all; --svg writes a picture."""
    _check(options)
    model = Model(options.layers, options.step_seconds)
    rows = [row for sync, row in _rows(options) if not sync or options.sync in (None, sync)]
    heading = (
        f"{plural(options.replicas, 'replica')} of "
        f"{plural(round(options.parameters), 'parameter')} in "
        f"{plural(options.layers, 'layer')}, sent as {options.dtype}; "
        f"a step computes for {duration(model.seconds)}"
    )
    if options.svg:
        options.svg.write_text(_picture(options, model, rows, heading), encoding="utf-8")
    records = [_record(row, model, options) for row in rows]
    return records if options.json else f"{heading}\n{_table(records, options)}"


def _check(options: argparse.Namespace) -> None:
    check_number("parameters", options.parameters, 1)
    check_number("step-seconds", options.step_seconds, 1e-9)
    check_number("gbit", options.gbit, 1e-9)
    check_number("alpha", options.alpha)
    for name in ("layers", "every"):
        check_count(name, getattr(options, name), MOST_STEPS)
    if options.parameters < options.layers:
        given = f"parameters {options.parameters:g} in {plural(options.layers, 'layer')}"
        raise ValueError(f"{given}: a layer has at least one; give fewer --layers")
    check_count("replicas", options.replicas, MOST_REPLICAS)
    LocalSteps(options.every, options.fragments, options.apply_after).check(options.layers)


def _rows(options: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Yields each method's value of --sync, "" for those that are always shown, and its row."""
    n, layers = options.replicas, options.layers

    def nbytes(dtype: str) -> float:
        return float(options.parameters) * BITS[dtype] / 8

    outer = all_reduce(n, nbytes(options.outer_dtype or options.dtype), layers)
    once = f"local, every {options.every}"
    yield "", Row("data parallelism", all_reduce(n, nbytes(options.dtype), layers), gap=1)
    for option in CODECS.where:
        for spec in getattr(options, option):
            yield "", Row(spec, _coded(option, spec, options), gap=1)
    yield "local", Row(once, outer, LocalSteps(options.every))
    streaming = LocalSteps(options.every, options.fragments, options.apply_after)
    if streaming != LocalSteps(options.every):
        name = f"{once}, {plural(options.fragments, 'fragment')}"
        name += f", {options.apply_after} later" * bool(options.apply_after)
        yield "local", Row(name, outer, streaming)
    for name in [options.graph] if options.graph else GRAPHS:
        graph = GRAPHS[name](n)
        degree = len(graph.offsets)
        sent = Sent(degree * layers, degree * nbytes(options.dtype))
        yield "gossip", Row(f"gossip, {name}", sent, gap=graph.gap())


def _coded(option: str, spec: str, options: argparse.Namespace) -> Sent:
    """Returns the traffic of an all-reduce with a codec, as if each layer were a square matrix."""
    size = round(options.parameters / options.layers)
    rows = isqrt(size)
    itemsize, n = -(-BITS[options.dtype] // 8), options.replicas
    name, of_layer = CODECS.needed(option).sent(spec, [(rows, size // rows)], itemsize, n)
    if of_layer is None:
        raise ValueError(
            f"{option} {quoted(name)}: only codecs of nnmpi are priced here; nnmpi.train "
            f"--dry-run --ranks {n} --{option} {shown(name)} counts its bytes"
        )
    return Sent(of_layer.messages * options.layers, of_layer.nbytes * options.layers)


def _record(row: Row, model: Model, options: argparse.Namespace) -> Record:
    def seconds(rate: float) -> float:
        piece = row.sent.seconds(options.alpha, rate) / model.layers
        return seconds_a_step(model, row.schedule, piece)

    return {
        "name": row.name,
        "bytes": row.sent.nbytes / row.schedule.every,
        "messages": row.sent.messages / row.schedule.every,
        "seconds": seconds(options.gbit * GBIT),
        "gbit": gbit_needed(model.seconds, seconds),
        "gap": row.gap,
    }


def _table(records: list[Record], options: argparse.Namespace) -> str:
    def gbit(share: str) -> Callable[[Record], str]:
        return lambda r: three_or_none(r["gbit"][share])

    cells: dict[str, Callable[[Record], str]] = {
        "a step": lambda r: r["name"],
        "bytes": lambda r: amount(r["bytes"]),
        "messages": lambda r: three_or_none(r["messages"]),
        f"at {options.gbit:g} Gbit/s": lambda r: duration(r["seconds"]),
        "computing": lambda r: f"{options.step_seconds / r['seconds']:.0%}",
        **{f"{'Gbit/s for ' * (i == 0)}{x:.0%}": gbit(f"{x:.0%}") for i, x in enumerate(SHARES)},
        "gap": lambda r: three_or_none(r["gap"]),
    }
    return table(cells, records)


def _picture(options: argparse.Namespace, model: Model, rows: list[Row], heading: str) -> str:
    """Returns an SVG of gossip's graphs, or of a replica and its link."""
    if options.sync == "gossip":
        names = [options.graph] if options.graph else GRAPHS
        return neighbours({name: GRAPHS[name](options.replicas) for name in names})
    length = options.every + options.apply_after + DRAWN
    timelines = []
    for row in rows:
        piece = row.sent.seconds(options.alpha, options.gbit * GBIT) / model.layers
        run = steps(model, row.schedule, piece, length)
        spans = tuple(span for _, step in run for span in step)
        timelines.append(Timeline(spans, 1, row.name, "s"))
    return svg(timelines, heading, min(timeline.end for timeline in timelines))
