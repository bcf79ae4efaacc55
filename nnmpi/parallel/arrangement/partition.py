"""Cuts a graph into pipeline stages: finds its units, and the best cut for given costs.

A unit is a layer with the ops that follow it, or several layers that run as one fused op. A cut is
a tuple: the index of the unit with which each stage except the first begins. Users write `--cut
3,7`, which counts the layers of the graph from 0: layers of nested Sequentials and other modules
count one by one, unless a module is kept whole. A user's cut may separate fused layers.

    layer  0 Conv2d  1 ReLU  2 MaxPool2d | 3 Flatten | 4 Linear  5 ReLU | 6 Linear
    unit   0                             | 1         | 2                | 3
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnmpi.nn.fusion import fused
from nnmpi.nn.graph import Graph
from nnmpi.nn.segment import chains
from nnmpi.options.quoting import shown
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.tensor.sharding import outermost

SplitPoints: TypeAlias = tuple[int, ...]
"""A cut: the index of the unit at which each stage except the first begins."""

NOISE = 0.02
"""Measured times that differ by less than this share count as equal."""


class Unit(NamedTuple):
    """A unit: layers that stay in one pipeline stage: one, or several that run as one op.

    first       the index of its first layer
    nodes       its graph nodes: its layers, and the ops that follow them
    layers      the class name of each layer
    path        the path of the first layer in the whole model
    variables   as in StagePart
    """

    first: int
    nodes: range
    layers: tuple[str, ...]
    path: str
    variables: frozenset[int]
    is_trained: bool

    def __str__(self) -> str:
        return " + ".join(self.layers)

    def with_following(self, following: "Unit") -> "Unit":
        """Returns the unit of this one and `following`, the next in the model."""
        return self._replace(
            nodes=range(self.nodes.start, following.nodes.stop),
            layers=self.layers + following.layers,
            variables=self.variables | following.variables,
            is_trained=self.is_trained or following.is_trained,
        )


@cached
def units(graph: Graph, begins: Sequence[int] = ()) -> list[Unit]:
    """Returns the units of a graph, which also begin at the layers `begins`, even within a fused
    op."""
    starts, first = {0, *begins}, 0
    for run in chains(graph, range(len(graph.nodes))):
        firsts = (graph.nodes[call.nodes.start].layer for call in run)
        for size in fused([layer for layer in firsts if layer]):
            starts.add(first)
            first += size
    places, homes = _places(graph), _home_of_unused(graph)
    for call in outermost(graph):  # its parts stay together, unless the user cuts them
        starts -= {i for i, k in enumerate(places) if k in call.nodes[1:]} - {*begins}
    all_units = []
    for first, end in pairwise([*sorted(starts), max(len(places), 1)]):
        begin = places[first] if first else 0  # ops before the first layer belong to it
        nodes = range(begin, places[end] if end < len(places) else len(graph.nodes))
        held = {v for k in nodes for v in graph.nodes[k].variables}
        held |= {v for v, k in homes.items() if k in nodes}
        inside = [graph.nodes[k] for k in nodes]
        named = [node for node in inside if node.layer] or inside[:1]
        all_units.append(
            Unit(
                first,
                nodes,
                tuple(node.kind for node in named),
                named[0].name if named else "",
                frozenset(held),
                any(graph.variables[v].is_trained for v in held),
            )
        )
    return all_units


def layers(graph: Graph) -> list[Unit]:
    """Returns each layer as a Unit, without joining fused ones."""
    return units(graph, range(len(_places(graph))))


def joined(graph: Graph, units: Sequence[Unit], by_one_tensor: bool = True) -> list[Unit]:
    """Joins units that must be in one stage: those that use the same buffer with those in between,
    and with `by_one_tensor` neighbours, unless exactly one tensor passes between them."""
    buffers = [{v for v in u.variables if not graph.variables[v].is_parameter} for u in units]
    last = {v: i for i, held in enumerate(buffers) for v in held}
    crossings = graph.crossings()
    groups, together = list[Unit](), 0  # the last unit that uses a buffer seen so far
    for i, unit in enumerate(units):
        crosses = not by_one_tensor or len(crossings[unit.nodes.start]) == 1
        if groups and (i <= together or not crosses):
            groups[-1] = groups[-1].with_following(unit)
        else:
            groups.append(unit)
        together = max([together, *(last[v] for v in buffers[i])])
    return groups


def _places(graph: Graph) -> list[int]:
    """Returns, for each layer of a model, the index of its node in the graph."""
    return [k for k, node in enumerate(graph.nodes) if node.layer]


def _home_of_unused(graph: Graph) -> dict[int, int]:
    """Returns for each unused variable the node of the one before it, with which it is stored."""
    users = {v: k for k, node in reversed([*enumerate(graph.nodes)]) for v in node.variables}
    homes, last = {}, 0
    for v in range(len(graph.variables)):
        if v in users:
            last = users[v]
        else:
            homes[v] = last
    return homes


def bounds(cut: Sequence[int], n: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each stage's units; `cut` has the first unit of each stage but the
    first, n is the number of units."""
    return list(pairwise((0, *cut, n)))


def as_text(cut: SplitPoints, units: Sequence[Unit]) -> str:
    """Returns a cut as users write it, by layer numbers: "3,7"."""
    return ",".join(str(units[k].first) for k in cut)


# ---- the best cut


class CutCosts(NamedTuple):
    """The costs by which a model is cut into stages, with one entry for each unit.

    seconds  the time of all passes of the unit
    fixed    bytes of its parameters, gradients and optimizer state
    kept     bytes that a micro-batch keeps between its forward and its backward pass
    border   the time of messages from and to the previous stage, if a stage begins with the unit"""

    seconds: Sequence[float]
    trained: Sequence[bool]
    fixed: Sequence[float]
    kept: Sequence[float]
    border: Sequence[float]


def split_points(
    costs: CutCosts, stages: int, live: Sequence[int] = (), notes: Sequence[str] = ()
) -> SplitPoints:
    """Returns the cut whose slowest stage is as fast as possible, with a trained parameter in each.

    The time of a stage is that of its units and of the messages at its ends. Cuts whose slowest
    stage takes at most 2% longer than that of the best (NOISE) count as equally fast. Of these, the
    one wins whose longest message is shortest; then the one whose largest stage needs least memory;
    then the fastest.

    live: for each stage, the number of micro-batches whose activations it keeps at a time
    notes: sentences to add to an error: why some modules stay in one stage"""
    refuse_few(sum(costs.trained), stages, notes)
    border = np.array([0.0, *costs.border[1:], 0.0])
    starts, ends = _spans(costs, border, stages)
    seconds = _sums(costs.seconds, starts, ends) + border[starts] + border[ends]
    none = (starts >= ends) | (_sums(costs.trained, starts, ends) == 0)
    time = np.where(none, np.inf, seconds)
    best, _ = _least_largest(repeat(time, stages))
    # allow longer and longer messages, until some cut is fast enough
    for longest in np.unique(border):
        short = (border[starts] <= longest) & (border[ends] <= longest)
        near = np.where(short & (time <= (1 + NOISE) * best), time, np.inf)
        if np.isfinite(_least_largest(repeat(near, stages))[0]):
            break
    fixed, kept = (_sums(nbytes, starts, ends) for nbytes in (costs.fixed, costs.kept))

    def room() -> Iterator[np.ndarray]:
        return (np.where(np.isfinite(near), fixed + n * kept, np.inf) for n in live or [1] * stages)

    least_room, _ = _least_largest(room())
    return _least_largest(np.where(held <= least_room, near, np.inf) for held in room())[1]


def _spans(costs: CutCosts, border: np.ndarray, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (starts, ends), two matrices of all spans of consecutive units that could be a stage.
    In row b, span k has the units from starts[b, k] to b - 1, and ends[b, k] is b. A row with fewer
    spans repeats the one that starts at unit 0.

    No span takes longer than the slowest stage of a simple cut, with equally many trained units in
    each stage: the best cut is no slower.
    """
    n, trained = len(costs.trained), np.flatnonzero(costs.trained)
    cut = np.array([0, *trained[len(trained) * np.arange(1, stages) // stages], n])
    # no span of the best cut takes longer than the slowest stage of this one; NOISE leaves a margin
    even_stages = _sums(costs.seconds, cut[:-1], cut[1:]) + border[cut[:-1]] + border[cut[1:]]
    up_to = np.concatenate(([0.0], np.cumsum(costs.seconds)))
    first = np.searchsorted(up_to, up_to - (1 + 2 * NOISE) * even_stages.max())
    ends = np.arange(n + 1)[:, None]
    width = int((ends[:, 0] - first).max())
    starts = np.maximum(ends - np.arange(width, 0, -1), 0)
    return starts, np.broadcast_to(ends, starts.shape)


def _sums(values: Sequence[float], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the sums of `values` over spans of units, from `starts` up to `ends`."""
    up_to = np.concatenate(([0.0], np.cumsum(np.asarray(values, np.float64))))
    sums: np.ndarray = up_to[ends] - up_to[starts]
    return sums


def _least_largest(costs: Iterable[np.ndarray]) -> tuple[float, SplitPoints]:
    """Finds the best cut by dynamic programming; returns (the cost of its most expensive stage, the
    cut).

    `costs` has an array for each stage: cost[b, k] is the cost of the stage if it consists of span
    k (see `_spans`) that ends before unit b. best[b] is the least possible cost of the most
    expensive of the stages so far, if they end before unit b.
    """
    best, starts = np.zeros(0), list[np.ndarray]()
    for cost in costs:
        n, width = cost.shape
        if not starts:
            best = np.where(np.arange(n) == 0, 0.0, np.inf)
        # preceding[b, k] is best[] at the unit where span k of row b begins; infinite before unit 0
        preceding = sliding_window_view(np.concatenate((np.full(width, np.inf), best)), width)[:n]
        largest = np.maximum(preceding, cost)
        chosen = largest.argmin(axis=1)
        starts.append(np.arange(n) - width + chosen)
        best = np.take_along_axis(largest, chosen[:, None], 1)[:, 0]
    ends = [len(best) - 1]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return float(best[-1]), tuple(ends[-2:0:-1])  # without 0, where the first stage begins


def refuse_few(trained: int, stages: int, notes: Sequence[str] = ()) -> None:
    """Raises ValueError, with sentences `notes`, if trained units are fewer than stages."""
    if trained < stages:
        reasons = "".join(f"; {note}, so it is one layer" for note in notes)
        raise ValueError(
            f"the model has {trained} layer{'s' * (trained != 1)} with trained parameters and "
            f"{stages} stages need one each: use fewer --pp or --virtual-stages{reasons}"
        )


# ---- a cut given by the user


def given_units(
    text: str | None, graph: Graph, stages: int
) -> tuple[list[Unit], SplitPoints | None]:
    """Parses a user's cut, such as "3,7"; returns (the units of the graph; the index of the unit
    with which each stage except the first begins, or None if `text` is None)."""
    if text is None:
        return units(graph), None
    begins = parse_cut(text, graph, stages)
    cut_units = units(graph, begins)
    return cut_units, tuple(k for k, unit in enumerate(cut_units) if unit.first in begins)


def parse_cut(text: str, graph: Graph, stages: int) -> SplitPoints:
    """Parses a user's cut, such as "3,7", which counts layers; raises ValueError if it is wrong."""
    option, parts = f"--cut {shown(text, 60)}", layers(graph)
    refuse_few(sum(layer.is_trained for layer in parts), stages, graph.notes)
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise ValueError(
            f"{option}: give the numbers of the layers where stages 1, 2, ... begin, as in 3,7"
        )
    numbers = tuple(map(int, words))
    if len(numbers) != stages - 1:
        given = f"{len(numbers)} number{'s' * (len(numbers) != 1)}"
        if stages == 1:
            raise ValueError(f"{option}: {given}, and one stage has no cut: leave it out")
        raise ValueError(
            f"{option}: {given} for {stages} stages; give {stages - 1}, the layers where stages "
            "1, 2, ... begin"
        )
    for a, b in pairwise((0, *numbers)):
        if b <= a:
            raise ValueError(
                f"{option}: {b} does not follow {a}; give increasing layer numbers, from 1 on"
            )
        if b >= len(parts):
            raise ValueError(
                f"{option}: there is no layer {b}: the model has {len(parts)}, "
                f"numbered from 0; give numbers from 1 to {len(parts) - 1}"
            )
    for s, (a, b) in enumerate(bounds(numbers, len(parts))):
        if not any(layer.is_trained for layer in parts[a:b]):
            raise ValueError(
                f"{option}: stage {s} from layer {a} up to {b - 1} "
                f"({', '.join(map(str, parts[a:b]))}) has no trained parameter, but every stage "
                "needs one"
            )
    return numbers
