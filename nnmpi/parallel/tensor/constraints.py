"""Constraints: what --layout asks of the search: axes to cut, and ways to divide layers."""

from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from nnmpi.nn.graph import Graph, Node
from nnmpi.options.amounts import plural
from nnmpi.parallel.tensor.choices import NodeChoice
from nnmpi.parallel.tensor.possible import follows, possible, takes_samples
from nnmpi.parallel.tensor.ways import LAYOUT_AXES, POSITIONS, SAMPLES, WHOLE, Marker, axis_of_way

BATCH = "batch"
OF_CHANNELS = frozenset({"channels", "heads", "vocabulary", "experts"})
"""The axis names that `channels:tp` allows; every other name allows only itself."""


WayPrice: TypeAlias = Callable[[int, NodeChoice], float]
"""A function that returns the seconds of a choice for a node of the graph."""


class Constraints(NamedTuple):
    """The axes and ways in which layers may be divided along tp, and the price of a choice.

    names    axes of activations that may be cut; if empty, those that --tp cuts by itself
    ways     the name of the way to divide a layer, for each layer path or pattern of paths
    samples  of a step, of all ranks along tp together: the gradients of a layer divided by samples
             are sent once a step, activations for each sample. With 0 gradients count as more than
             any activations
    price    the price of a choice in seconds; None: the number of elements sent
    """

    names: frozenset[str] = frozenset()
    ways: Mapping[str, str] = {}
    samples: int = 0
    price: WayPrice | None = None

    @property
    def cuts(self) -> list[Marker]:
        """The Markers along which layers may be cut besides positions: samples, axes of add-ons."""
        by_samples = bool(self.ways) or BATCH in self.names
        asked = filter(None, map(axis_of_way, self.ways.values()))
        return [*[SAMPLES] * by_samples, *dict.fromkeys((*self.named, *asked))]

    @property
    def named(self) -> list[Marker]:
        """Markers of add-ons' axes in the layout: layers are cut there wherever possible."""
        return [*LAYOUT_AXES.of_fields(self.names)]

    @property
    def per_step(self) -> int:
        """The number of samples of a step, by which traffic once a step is divided; 0 if the layout
        names neither samples nor an axis of an add-on, since cuts of channels need no
        such comparison."""
        return self.samples * (BATCH in self.names or bool(self.named))

    def allows(self, graph: Graph, node: Node, choice: NodeChoice) -> bool:
        """True if a choice is allowed: a layout with axes allows cuts along these only."""
        if choice.way is WHOLE:
            by_samples = BATCH in self.names and takes_samples(graph, node)
            return not by_samples or follows(node)
        if choice.way.pattern.how == "samples":
            return BATCH in self.names or not self.names or follows(node)
        if choice.way.of_layout and choice.way.input is None:
            return choice.way.output in self.named or not self.names
        name = _cut_of(graph, node, choice)
        allowed = OF_CHANNELS if "channels" in self.names else self.names
        return not (self.names and name) or name in allowed

    def check(self, graph: Graph, ranks: int, is_cut: bool) -> None:
        """Raises ValueError if --layout names an axis that no layer has, or along which no layer
        can be cut. `is_cut` is True if the search has found a division. With prices in seconds all
        axes may be cut, and none has to be, so nothing is checked."""
        for name in sorted(self.names) if self.price is None else ():
            group = OF_CHANNELS if name == "channels" else {name}
            having = [
                (node, max(axis.size for axis in axes))
                for node in graph.nodes
                for e in node.outputs[:1]
                if (axes := [axis for axis in graph.edges[e].axes if axis.name in group])
            ]
            if not having:
                raise ValueError(
                    f"layout {name}:tp: no layer has an axis {name}: use another, or leave it out"
                )
            node, longest = max(having, key=lambda pair: pair[1])
            if not is_cut:
                raise ValueError(
                    f"layout {name}:tp: no layer can be cut along {name} among {ranks} ranks; the "
                    f"longest such axis has {longest}, in {node.name} ({node.kind})"
                )


UNCONSTRAINED = Constraints()
"""No constraints: the cuts of --tp without --layout."""


def _cut_of(graph: Graph, node: Node, choice: NodeChoice) -> str:
    """Returns the axis along which a choice cuts a whole tensor, or ""."""
    way, y = choice.way, graph.edges[node.outputs[0]]
    if not way.pattern.divides:
        return ""
    if not isinstance(way.output, int):
        return way.divided
    return y.axes[1:][way.output].name


def wanted_ways(graph: Graph, ways: Mapping[str, str], inside: Collection[int]) -> dict[str, str]:
    """Returns, by path of a layer, the name of the way to divide it that --layout asks for; of
    several patterns in `ways` that fit a layer, the last counts.

    A pattern selects only layers that can be divided in its way. It leaves out layers that one rank
    computes (`inside` has their nodes), and layers that work unchanged on a part of their input;
    one of the latter is selected only by its full path, with a way of an add-on. Raises ValueError
    for a pattern that selects nothing, and for a path whose layer cannot be divided in this way.
    """
    wanted = dict[str, str]()
    for pattern, how in ways.items():
        is_of_add_on = axis_of_way(how) is not None
        nodes = (n for k, n in enumerate(graph.nodes) if n.layer is not None and k not in inside)
        named = [n for n in nodes if fnmatchcase(n.name, pattern)]
        free = (n for n in named if not follows(n) or (n.name == pattern and is_of_add_on))
        ways_of, markers = dict[str, list[str]](), (POSITIONS, SAMPLES, *LAYOUT_AXES.rows())
        for n in free:
            names = [way.pattern.how for way in (WHOLE, *possible(graph, n, markers))]
            ways_of[n.name] = [*dict.fromkeys(names + ["samples"] * takes_samples(graph, n))]
        having = [name for name, names in ways_of.items() if how in names]
        if not having or (pattern in ways_of and pattern not in having):
            why = "the model has no such layer"
            if named:
                why = f"{named[0].name} ({named[0].kind}) is cut as the layer before it"
            for name, names in ways_of.items():
                why = f"the ways of {name} are {', '.join(names)}"
            raise ValueError(f"layout {pattern}={how}: {why}")
        wanted |= dict.fromkeys(having, how)
    return wanted


def refuse_positions(graph: Graph, ranks: int) -> None:
    """Raises ValueError, with a reason, if no layer can be divided by positions."""
    ways = [(node, way) for node in graph.nodes for way in possible(graph, node, (POSITIONS,))]
    samples = (graph.edges[node.outputs[0]].sample for node, way in ways if way.output is POSITIONS)
    longest = max((sample[0] for sample in samples if len(sample) == 2), default=0)
    few = [node for node, _ in ways if min(_heads(node, ranks))[0] < ranks]
    why = "the model has none between layers that are divided"
    remedy = "leave --sequence-parallel out"
    if 0 < longest < ranks:
        why = f"a sample has {longest}, fewer than the {ranks} ranks"
        remedy = "use a smaller --tp"
    elif few:
        heads, kind = min(_heads(few[0], ranks))
        why = (
            f"layer {few[0].name} ({few[0].kind}) between them has {plural(heads, kind)}, which "
            f"cannot be divided among {ranks} ranks"
        )
        remedy = f"use a --tp of at most {heads}, or {remedy}"
    raise ValueError(
        "sequence parallelism divides positions between layers that treat each position alone, but "
        + "; ".join([f"{why}: {remedy}", *graph.notes])
    )


def _heads(node: Node, ranks: int) -> list[tuple[int, str]]:
    """Returns (number, name in messages) for the heads of an attention layer, and its key/value
    heads; the number is `ranks` for a layer without them, which does not limit the division."""
    names = {"num_heads": "head", "num_kv_heads": "key/value head"}
    return [(node.settings.get(key, ranks), name) for key, name in names.items()]
