"""Where a graph is cut into stages: its units, the best cut, and a cut by hand.

A unit is a layer with the ops behind it, or some layers in a chain that run as one op. A cut is the
index of the unit at which each stage but the first begins. A user gives the same as `--cut 3,7`,
but counts layers, those of the graph from 0: in a Sequential its layers, where those of a nested
Sequential or of any other module count one by one, unless it is taken whole. Stage 1 begins with
layer 3, stage 2 with layer 7. A cut by hand may part layers that would run as one op.

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
from nnmpi.parallel.tensor.branches import outermost

SplitPoints: TypeAlias = tuple[int, ...]
"""The index of the unit at which each stage but the first begins."""

NOISE = 0.02
"""Times of a profile that differ by less than this share count as equal."""


class Unit(NamedTuple):
    """Layers that stay together.

    first       the number of its first layer
    nodes       of the graph: its layers, and the ops behind them
    layers      the class of each layer
    path        of the first layer in the whole model
    variables   that its nodes use, and those beside them that no node uses
    is_trained  whether it has a parameter that is trained
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
        """This unit and the one behind it, as one."""
        return self._replace(
            nodes=range(self.nodes.start, following.nodes.stop),
            layers=self.layers + following.layers,
            variables=self.variables | following.variables,
            is_trained=self.is_trained or following.is_trained,
        )


def units(graph: Graph, begins: Sequence[int] = ()) -> list[Unit]:
    """The units of a graph; one begins with each of the layers `begins`, whatever it runs with."""
    starts, first = {0, *begins}, 0
    for run in chains(graph, range(len(graph.nodes))):
        firsts = (graph.nodes[call.nodes.start].layer for call in run)
        for size in fused([layer for layer in firsts if layer]):
            starts.add(first)
            first += size
    places, homes = _places(graph), _home_of_unused(graph)
    for call in outermost(graph):  # branches stay together, unless a cut is given by hand
        starts -= {i for i, k in enumerate(places) if k in call.nodes[1:]} - {*begins}
    made = []
    for first, end in pairwise([*sorted(starts), max(len(places), 1)]):
        begin = places[first] if first else 0  # ops before the first layer are with it
        nodes = range(begin, places[end] if end < len(places) else len(graph.nodes))
        held = {v for k in nodes for v in graph.nodes[k].variables}
        held |= {v for v, k in homes.items() if k in nodes}
        inside = [graph.nodes[k] for k in nodes]
        named = [node for node in inside if node.layer] or inside[:1]
        made.append(
            Unit(
                first,
                nodes,
                tuple(node.kind for node in named),
                named[0].name if named else "",
                frozenset(held),
                any(graph.variables[v].is_trained for v in held),
            )
        )
    return made


def layers(graph: Graph) -> list[Unit]:
    """The layers of a graph, each as a unit."""
    return units(graph, range(len(_places(graph))))


def joined(graph: Graph, units: Sequence[Unit]) -> list[Unit]:
    """Units, those that stay together as one: between others one tensor crosses, and no buffer is
    in both."""
    buffers = [{v for v in u.variables if not graph.variables[v].is_parameter} for u in units]
    last = {v: i for i, held in enumerate(buffers) for v in held}
    groups, together = list[Unit](), 0  # up to this unit a buffer is used again
    for i, unit in enumerate(units):
        if groups and (i <= together or len(graph.crossing(unit.nodes.start)) != 1):
            groups[-1] = groups[-1].with_following(unit)
        else:
            groups.append(unit)
        together = max([together, *(last[v] for v in buffers[i])])
    return groups


def _places(graph: Graph) -> list[int]:
    """The node of each layer."""
    return [k for k, node in enumerate(graph.nodes) if node.layer]


def _home_of_unused(graph: Graph) -> dict[int, int]:
    """The node that each variable is with that none uses: that of the variable before it."""
    users = {v: k for k, node in reversed([*enumerate(graph.nodes)]) for v in node.variables}
    homes, last = {}, 0
    for v in range(len(graph.variables)):
        if v in users:
            last = users[v]
        else:
            homes[v] = last
    return homes


def bounds(cut: Sequence[int], n: int) -> list[tuple[int, int]]:
    """(start, end) of the units of each stage; n is the number of units."""
    return list(pairwise((0, *cut, n)))


def as_text(cut: SplitPoints, units: Sequence[Unit]) -> str:
    """A cut as a user gives it: "3,7"."""
    return ",".join(str(units[k].first) for k in cut)


# ---- the best cut


class CutCosts(NamedTuple):
    """The costs by which a model is cut into stages, an entry a unit: no rank has a step that could
    be priced before the model is cut.

    seconds  of all its passes
    trained  whether it has a trained parameter
    fixed    bytes of its parameters, and of what goes with them
    kept     bytes that a micro-batch adds from its forward pass to its backward pass
    border   seconds of the messages in front of it, both ways, if a stage begins there
    """

    seconds: Sequence[float]
    trained: Sequence[bool]
    fixed: Sequence[float]
    kept: Sequence[float]
    border: Sequence[float]


def split_points(
    costs: CutCosts, stages: int, live: Sequence[int] = (), notes: Sequence[str] = ()
) -> SplitPoints:
    """The cut whose slowest stage is fastest, with a trained parameter in every stage.

    A stage takes the time of its units, and of the messages at its ends. Of the cuts within NOISE
    of the best time, those whose longest message is shortest; of these the one whose largest stage
    takes least memory, of so many `live` micro-batches each; of these the fastest. `notes` say why
    modules are units.
    """
    refuse_few(sum(costs.trained), stages, notes)
    border = np.array([0.0, *costs.border[1:], 0.0])
    starts, ends = _spans(costs, border, stages)
    seconds = _sums(costs.seconds, starts, ends) + border[starts] + border[ends]
    none = (starts >= ends) | (_sums(costs.trained, starts, ends) == 0)
    time = np.where(none, np.inf, seconds)
    best, _ = _least_largest(repeat(time, stages))
    for longest in np.unique(border):
        short = (border[starts] <= longest) & (border[ends] <= longest)
        near = np.where(short & (time <= (1 + NOISE) * best), time, np.inf)
        if np.isfinite(_least_largest(repeat(near, stages))[0]):
            break
    fixed, kept = (_sums(nbytes, starts, ends) for nbytes in (costs.fixed, costs.kept))

    def room() -> Iterator[np.ndarray]:
        return (np.where(np.isfinite(near), fixed + n * kept, np.inf) for n in live or [1] * stages)

    most, _ = _least_largest(room())
    return _least_largest(np.where(held <= most, near, np.inf) for held in room())[1]


def _spans(costs: CutCosts, border: np.ndarray, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """starts[b, k] and ends[b, k] of spans of units that may be a stage: those that end before unit
    b, as many in each row. Where there are fewer, the first ones begin with unit 0, too.

    The best cut is no slower than one into stages with as many trained units, so no span takes more
    than the slowest stage of that.
    """
    n, trained = len(costs.trained), np.flatnonzero(costs.trained)
    cut = np.array([0, *trained[len(trained) * np.arange(1, stages) // stages], n])
    some = _sums(costs.seconds, cut[:-1], cut[1:]) + border[cut[:-1]] + border[cut[1:]]
    up_to = np.concatenate(([0.0], np.cumsum(costs.seconds)))
    first = np.searchsorted(up_to, up_to - (1 + 2 * NOISE) * some.max())
    ends = np.arange(n + 1)[:, None]
    most = int((ends[:, 0] - first).max())
    starts = np.maximum(ends - np.arange(most, 0, -1), 0)
    return starts, np.broadcast_to(ends, starts.shape)


def _sums(values: Sequence[float], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Over the units of spans."""
    up_to = np.concatenate(([0.0], np.cumsum(np.asarray(values, np.float64))))
    sums: np.ndarray = up_to[ends] - up_to[starts]
    return sums


def _least_largest(costs: Iterable[np.ndarray]) -> tuple[float, SplitPoints]:
    """The cut whose largest cost[b, k] of a stage, of its span, is least, and that cost.

    best[b] is the least largest cost of so many stages that end before unit b.
    """
    best, starts = np.zeros(0), list[np.ndarray]()
    for cost in costs:
        n, most = cost.shape
        if not starts:
            best = np.where(np.arange(n) == 0, 0.0, np.inf)
        preceding = sliding_window_view(np.concatenate((np.full(most, np.inf), best)), most)[:n]
        largest = np.maximum(preceding, cost)
        chosen = largest.argmin(axis=1)
        starts.append(np.arange(n) - most + chosen)
        best = np.take_along_axis(largest, chosen[:, None], 1)[:, 0]
    ends = [len(best) - 1]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return float(best[-1]), tuple(ends[-2:0:-1])  # without 0, where the first stage begins


def refuse_few(trained: int, stages: int, notes: Sequence[str] = ()) -> None:
    """Raises ValueError if there are fewer units with trained parameters than stages."""
    if trained < stages:
        reasons = "".join(f"; {note}, so it is one layer" for note in notes)
        raise ValueError(
            f"the model has {trained} layer{'s' * (trained != 1)} with trained parameters and "
            f"{stages} stages need one each: use fewer --pp or --virtual-stages{reasons}"
        )


# ---- a cut by hand


def given_units(
    text: str | None, graph: Graph, stages: int
) -> tuple[list[Unit], SplitPoints | None]:
    """The units of a cut that a user gives, and the cut; None if none is given."""
    if text is None:
        return units(graph), None
    begins = parse_cut(text, graph, stages)
    made = units(graph, begins)
    return made, tuple(k for k, unit in enumerate(made) if unit.first in begins)


def parse_cut(text: str, graph: Graph, stages: int) -> SplitPoints:
    """The layers at which stages begin, as a user gives them; raises ValueError for no cut."""
    option, known = f"--cut {shown(text, 60)}", layers(graph)
    refuse_few(sum(layer.is_trained for layer in known), stages, graph.notes)
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise ValueError(
            f"{option}: give the numbers of the layers where stages 1, 2, ... begin, as in 3,7"
        )
    numbers = tuple(map(int, words))
    if len(numbers) != stages - 1:
        raise ValueError(
            f"{option}: {len(numbers)} number{'s' * (len(numbers) != 1)} for {stages} "
            f"stage{'s' * (stages != 1)}; give {stages - 1}, the layers where stages 1, 2, ... "
            "begin"
        )
    for a, b in pairwise((0, *numbers)):
        if b <= a:
            raise ValueError(
                f"{option}: {b} does not follow {a}; give increasing numbers of layers, from 1 on"
            )
        if b >= len(known):
            raise ValueError(
                f"{option}: there is no layer {b}: the model has {len(known)}, numbered from 0"
            )
    for s, (a, b) in enumerate(bounds(numbers, len(known))):
        if not any(layer.is_trained for layer in known[a:b]):
            raise ValueError(
                f"{option}: stage {s} from layer {a} up to {b - 1} "
                f"({', '.join(map(str, known[a:b]))}) has no trained parameter, and every stage "
                "needs one"
            )
    return numbers
