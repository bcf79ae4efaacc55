"""Choices: the ways in which a node of a graph may be divided, given how its inputs are."""

from collections.abc import Iterator, Sequence
from operator import add
from types import EllipsisType
from typing import Any, NamedTuple

from nnmpi.collectives.step import bounds as parts_of
from nnmpi.nn.graph import Edge, Graph, Node, Use, Value
from nnmpi.parallel.tensor.ops import Bounds, even_bounds
from nnmpi.parallel.tensor.patterns import GATHER_OUTPUT, POSITIONS, Along, Message
from nnmpi.parallel.tensor.rules import OPS, RULES, ways
from nnmpi.parallel.tensor.ways import KEPT, TERMS, WHOLE, AxisCut, Way


class PlanCost(NamedTuple):
    """What a plan costs; the first number decides.

    copied  parameters that every rank has, though their layer could be divided
    whole   with sequence parallelism: numbers of a sample, between nodes, that every rank has
    sent    numbers of a sample: twice those that are summed, once those that are gathered or
            reduce-scattered; not tokens that travel to experts, as no other way has as few whole
    """

    copied: int = 0
    whole: int = 0
    sent: int = 0

    def plus(self, other: "PlanCost") -> "PlanCost":
        """The cost of both."""
        return PlanCost(*map(add, self, other))


class NodeChoice(NamedTuple):
    """One way of a node, with what follows from it.

    bounds     the channels of each rank
    gathers    whether the output is gathered
    output     where the output is cut
    variables  where each parameter and buffer of the node is cut
    """

    way: Way
    cost: PlanCost
    bounds: Bounds = ()
    gathers: bool = False
    output: AxisCut | None = None
    variables: tuple[tuple[int, AxisCut | None], ...] = ()

    @property
    def words(self) -> str:
        """The name of the choice, for messages."""
        return "gathered " * self.gathers + self.way.name


def choices(
    graph: Graph,
    k: int,
    states: Sequence[AxisCut | None],
    ranks: int,
    is_shared: bool,
    sequence: bool = False,
) -> Iterator[NodeChoice]:
    """The choices for node k if its inputs are cut so, the preferred one first.

    `is_shared`: another node uses its parameters too, so that it may have to be a copy. With
    `sequence`, sequence parallelism, positions may be cut.
    """
    node = graph.nodes[k]
    uncut = tuple((v, None) for v in node.variables)
    if node.layer is None:
        axes = {len(graph.edges[e].axes) for e in (*node.inputs, *node.outputs)}
        if not any(states):
            yield NodeChoice(WHOLE, PlanCost(), variables=uncut)
        elif len(set(states)) == len(axes) == 1 and keeps_cut(graph, node):
            yield NodeChoice(KEPT, PlanCost(), output=states[0], variables=uncut)
        return
    found = possible(graph, node, sequence)
    for way in found:
        if len(set(states)) == 1:
            yield from _cut_by(graph, node, way, states[0], ranks)
    needs_division = any(way.input is None for way in found)
    if not any(states) and (is_shared or not needs_division):
        size = sum(graph.variables[v].size for v in node.variables)
        yield NodeChoice(WHOLE, PlanCost(size * needs_division), variables=uncut)


def possible(graph: Graph, node: Node, sequence: bool = False) -> list[Way]:
    """The ways of a layer with its settings; none if it is not called with samples alone.

    Those that cut positions are among them with `sequence` alone.
    """
    edges = [graph.edges[e] for e in (*node.inputs, *node.outputs)]
    if node.layer is None or not is_plain(node) or not all(edge.of_samples for edge in edges):
        return []
    fitting = (way for way in ways(node.layer) if sequence or not way.has_positions)
    inputs = len(node.arguments[0])
    found = [way for way in fitting if way.inputs == inputs and way.fits(node.settings)]
    for way in found if node.layer not in RULES else ():
        _check_own(graph, node, way)
    return found


def is_plain(node: Node) -> bool:
    """Whether a layer is called with tensors of samples alone, and returns one."""
    args, named = node.arguments
    return not named and all(type(part) is Value for part in (*args, node.result))


def keeps_cut(graph: Graph, node: Node) -> bool:
    """Whether an op takes inputs that are cut: other arguments are numbers that are not trained."""
    return node.op in OPS and all(_is_number(graph, a) for a in node.arguments[0])


def _is_number(graph: Graph, argument: Any) -> bool:
    if type(argument) is Value:
        return True
    if type(argument) is Use:  # of a trained number each rank would have a part of the gradient
        used = graph.variables[argument.variable]
        return used.size == 1 and not used.is_trained
    return bool(getattr(argument, "size", 1) == 1)


def _cut_by(
    graph: Graph, node: Node, way: Way, state: AxisCut | None, ranks: int
) -> Iterator[NodeChoice]:
    """The choices of one way of a layer: with its output as it is, and gathered."""
    x, y = graph.edges[node.inputs[0]], graph.edges[node.outputs[0]]
    sides = (way.input, x), (way.output, y)
    if any(along is POSITIONS and cut_of_positions(e, ranks) is None for along, e in sides):
        return
    if way.pattern.divides:
        size = channels(graph, node, way)
        if state != (cut_of_positions(x, ranks) if way.input else None) or size < ranks:
            return
        for block in _blocks(graph, node, size, ranks):
            bounds = tuple(b * block for b in even_bounds(size // block, ranks, node.name))
            yield from _with_bounds(graph, node, way, state, bounds, ranks)
    else:
        if state is None or way.input is None or _axis(way.input, x, state.axis) != state.axis:
            return
        block, behind = way.block(node.settings, x.sample), None
        if not any(b % block for b in state.bounds):
            behind = way.behind(node.settings, x.sample, state.bounds)
        if behind is None:
            return
        if len(behind) != ranks + 1 or behind[0] != 0 or sorted(behind) != [*behind]:
            raise ValueError(
                f"layer {node.name} ({node.kind}): `behind` of its rule gives the bounds {behind}: "
                f"give {ranks + 1} that rise from 0, for rank r those at r and r + 1"
            )
        yield from _with_bounds(graph, node, way, state, behind, ranks)


def cut_of_positions(edge: Edge, ranks: int) -> AxisCut | None:
    """The positions of each rank; None if there are none, or too few of them."""
    if len(edge.sample) != 2 or edge.sample[0] < ranks:
        return None
    return AxisCut(parts_of(edge.sample[0], ranks), 0)


def _blocks(graph: Graph, node: Node, size: int, ranks: int) -> Iterator[int]:
    """How many channels in a row may be kept together: one, or those that a layer behind needs."""
    yield 1
    found = {1}
    for other in graph.nodes:
        if node.outputs[0] in other.inputs:
            sample = graph.edges[node.outputs[0]].sample
            for way in possible(graph, other):
                block = way.block(other.settings, sample)
                if block not in found and not size % block and size // block >= ranks:
                    found.add(block)
                    yield block


def _with_bounds(
    graph: Graph, node: Node, way: Way, state: AxisCut | None, bounds: Bounds, ranks: int
) -> Iterator[NodeChoice]:
    """The choices of one way of a layer, whose channels are divided so."""
    y = graph.edges[node.outputs[0]]
    variables = _cuts(graph, node, way, bounds)
    cost = _cost(graph, node, *way.pattern.sends)
    if way.output is None or way.output is POSITIONS:
        output = cut_of_positions(y, ranks) if way.output else None
        yield NodeChoice(way, cost, bounds, False, output, variables)
        return
    output = AxisCut(bounds, _axis(way.output, y, -1 if state is None else state.axis))
    if y.sample[output.axis] == bounds[-1]:
        yield NodeChoice(way, cost, bounds, False, output, variables)
    if way.pattern.divides:
        gathered = cost.plus(_cost(graph, node, GATHER_OUTPUT))
        yield NodeChoice(way, gathered, bounds, True, None, variables)


def _cost(graph: Graph, node: Node, *messages: Message) -> PlanCost:
    return PlanCost(sent=sum(one.weight * one.carries(graph, node) for one in messages))


def channels(graph: Graph, node: Node, way: Way) -> int:
    """How many channels there are to divide: of the output, or rows of a table."""
    y = graph.edges[node.outputs[0]]
    if way.output is not None and way.output is not POSITIONS:
        return y.sample[_axis(way.output, y, -1)]
    sizes = variables_of(graph, node)
    return max(
        (graph.variables[sizes[p]].shape[a] for p, a in way.parameters.items() if p in sizes)
    )


def _axis(axis: Along, edge: Edge, same: int) -> int:
    """An axis of a sample, counted from 0."""
    if axis is POSITIONS:
        return 0
    assert axis is not None
    return (same if isinstance(axis, EllipsisType) else axis) % len(edge.sample)


def variables_of(graph: Graph, node: Node) -> dict[str, int]:
    """The parameters and buffers of a layer, by the name of the attribute."""
    found = {}
    for v in node.variables:
        for path in graph.variables[v].names:
            owner, _, name = path.rpartition(".")
            if owner == node.name:
                found[name] = v
    return found


def _cuts(
    graph: Graph, node: Node, way: Way, bounds: Bounds
) -> tuple[tuple[int, AxisCut | None], ...]:
    """Where each parameter and buffer is cut.

    Of a table of positions, the last rank has the rows that no sample is long enough for, too.
    """
    found: list[tuple[int, AxisCut | None]] = []
    for name, v in variables_of(graph, node).items():
        axis, shape, ends = way.parameters.get(name), graph.variables[v].shape, bounds
        if way.input is POSITIONS and not way.pattern.divides and axis is not None:
            ends = (*bounds[:-1], max(bounds[-1], shape[axis]))
        if axis is not None and shape[axis] != ends[-1]:
            raise ValueError(
                f"layer {node.name} ({node.kind}): its rule cuts {name} of shape {shape} along "
                f"axis {axis}, where it needs one for each of {bounds[-1]} channels"
            )
        others = TERMS if way.output is POSITIONS and graph.variables[v].is_parameter else None
        found.append((v, others if axis is None else AxisCut(ends, axis % len(shape))))
    return tuple(found)


def _check_own(graph: Graph, node: Node, way: Way) -> None:
    """Raises ValueError if the way of somebody's own layer cannot be right."""
    what = f"layer {node.name} ({node.kind}): the way {way.pattern.how!r} of its rule"
    if way.joins_positions:
        raise ValueError(f"{what} cuts positions on one side: give POSITIONS on both, or on none")
    for name, v in variables_of(graph, node).items():
        along, n = way.parameters.get(name), len(graph.variables[v].shape)
        if along is not None and not -n <= along < n:
            raise ValueError(f"{what} cuts axis {along} of {name}, which has {n}")
        if graph.variables[v].is_parameter and along is None and not way.has_positions:
            raise ValueError(
                f"{what} leaves {name} whole, which a sum over ranks would add once a rank, or of "
                "which each rank would have a part of the gradient: cut it too, or make it a "
                "parameter of a layer of its own"
            )
    for axis, e in ((way.input, node.inputs[0]), (way.output, node.outputs[0])):
        n = len(graph.edges[e].sample)
        if not n or (isinstance(axis, int) and not -n <= axis < n):
            raise ValueError(f"{what} cuts axis {axis} of a sample, which has {n}")
    if way.input is None and way.output is ...:
        raise ValueError(f"{what} has output=..., the axis of the input, and input=None: give one")
