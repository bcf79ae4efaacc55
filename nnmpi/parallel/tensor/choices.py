"""Choices: how a node can be divided given its inputs, and what that costs."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from operator import add
from types import EllipsisType
from typing import NamedTuple

from nnmpi.nn.graph import Edge, Graph, Node
from nnmpi.parallel.tensor.ops import Bounds, even_bounds
from nnmpi.parallel.tensor.possible import follows, keeps_cut, possible, takes_samples, variables_of
from nnmpi.parallel.tensor.specs import BySamples
from nnmpi.parallel.tensor.ways import (
    ELEMENTWISE_WAY,
    GATHER_OUTPUT,
    PARTIAL_GRADIENT,
    POSITIONS,
    SAMPLE_CUT,
    SAMPLES,
    WHOLE,
    Along,
    AxisCut,
    Marker,
    Message,
    Way,
)

BY_SAMPLES = Way(SAMPLES, SAMPLES, part=BySamples)
FOLLOWS_SAMPLES = Way(SAMPLES, SAMPLES)
"""The way of a layer that works on some samples, fused or not."""


class PlanCost(NamedTuple):
    """The cost of a plan, compared field by field in this order. These are numbers of elements, not
    times: a plan decides in which order numbers are added, so it must be the same on every machine.

    copied  elements of the parameters that every rank has, although their layer could be divided
    whole   elements of the activations between layers, for one sample, that every rank has whole;
            counted only with sequence parallelism, or if a layout names an axis of an add-on
    sent    elements that ranks exchange for one sample: all-reduced ones count twice, gathered or
            reduce-scattered ones once. Messages to experts do not count, since no other division
            leaves fewer activations whole. A time in seconds, if the search is for the fastest plan
    """

    copied: int = 0
    whole: int = 0
    sent: float = 0

    def plus(self, other: "PlanCost") -> "PlanCost":
        """Returns the sum of this cost and another one, field by field."""
        return PlanCost(*map(add, self, other))


class NodeChoice(NamedTuple):
    """A way to divide a node among ranks, its cost, and how the tensors are cut then.

    bounds     rank r has channels bounds[r] to bounds[r + 1] - 1
    gathers    whether the output is all-gathered
    output     the cut of the output; None if it is whole
    variables  (number, cut) of each parameter and buffer of the node; None if it is whole
    """

    way: Way
    cost: PlanCost
    bounds: Bounds = ()
    gathers: bool = False
    output: AxisCut | None = None
    variables: tuple[tuple[int, AxisCut | None], ...] = ()

    @property
    def words(self) -> str:
        """The name of the choice in messages to the user, such as "gathered column"."""
        return "gathered " * self.gathers + self.way.name


class NodeChoices:
    """Finds the ways in which ranks may divide each node of a graph, given how its inputs are cut.

    cuts      the Markers of the axes that may be cut besides channels, such as positions
    per_step  the number of samples of a step, by which the cost of summing a gradient is divided:
              activations are sent for each sample, gradients once a step. 0: unknown; a sum then
              costs as much as if each rank had a copy of the parameter
    """

    def __init__(
        self, graph: Graph, ranks: int, cuts: Collection[Marker] = (), per_step: int = 0
    ) -> None:
        self.graph, self.ranks, self.cuts, self.per_step = graph, ranks, cuts, per_step
        self._users = graph.users()

    @cached_property
    def ways(self) -> list[list[Way]]:
        """The ways that each node's layer allows, whatever its inputs are."""
        return [possible(self.graph, node, self.cuts) for node in self.graph.nodes]

    def of(
        self, k: int, states: Sequence[AxisCut | None], may_be_copy: bool
    ) -> Iterator[NodeChoice]:
        """Yields the choices for node k, the preferred one first; `states` are the cuts of its
        inputs (None: whole). With `may_be_copy`, a layer that could be divided may also be
        whole, for example because another node uses its parameters too."""
        graph, node = self.graph, self.graph.nodes[k]
        uncut = tuple((v, None) for v in node.variables)
        if node.layer is None:
            axes = {len(graph.edges[e].axes) for e in (*node.inputs, *node.outputs)}
            if not any(states):
                yield NodeChoice(WHOLE, PlanCost(), variables=uncut)
            elif len(set(states)) == len(axes) == 1 and keeps_cut(graph, node):
                yield NodeChoice(ELEMENTWISE_WAY, PlanCost(), output=states[0], variables=uncut)
            return
        ways = self.ways[k]
        size = sum(graph.variables[v].size for v in node.variables)
        for way in ways:
            if way.of_layout:
                yield from way.of_layout.choices(self, k, way, states)
            elif len(set(states)) == 1:
                yield from self._cut_by(node, way, states[0])
        needs_division = any(way.input is None for way in ways)
        copied = PlanCost(needs_division * size)
        if not any(states) and (may_be_copy or not needs_division):
            yield NodeChoice(WHOLE, copied, variables=uncut)
        if SAMPLES in self.cuts and takes_samples(graph, node):
            summed = PlanCost(sent=-(-2 * size // self.per_step)) if self.per_step else copied
            yield from self._by_samples(node, states, summed)

    def _by_samples(
        self, node: Node, states: Sequence[AxisCut | None], summed: PlanCost
    ) -> Iterator[NodeChoice]:
        """Yields the choices in which each rank computes a layer for some samples of a micro-batch:
        one leaves the output divided, the other gathers it. `summed`: the cost of
        summing gradients."""
        edges, pairs = self.graph.edges, zip(states, node.inputs, strict=True)
        graded = [state for state, e in pairs if edges[e].requires_grad]
        if {*states} - {None, SAMPLE_CUT} or (None in graded and len(graded) > 1):
            return
        variables = self.terms(node)
        if follows(node):
            if None not in states:
                way, output = FOLLOWS_SAMPLES, SAMPLE_CUT
                yield NodeChoice(way, PlanCost(), output=output, variables=variables)
            return
        way = BY_SAMPLES._replace(input=None) if None in states else BY_SAMPLES
        cost = summed.plus(self.cost(node, *way.pattern.sends))
        choice = NodeChoice(way, cost, output=SAMPLE_CUT, variables=variables)
        yield from (choice, self.gathered(node, choice))

    def _cut_by(self, node: Node, way: Way, state: AxisCut | None) -> Iterator[NodeChoice]:
        """Yields the choices that divide a layer in one way: the output left cut, and gathered."""
        graph, ranks = self.graph, self.ranks
        x, y = graph.edges[node.inputs[0]], graph.edges[node.outputs[0]]
        sides = (way.input, x), (way.output, y)
        if any(isinstance(a, Marker) and a.cut(e, ranks) is None for a, e in sides):
            return
        if way.pattern.divides:
            size = channels(graph, node, way)
            needed = way.input.cut(x, ranks) if isinstance(way.input, Marker) else None
            if state != needed or size < ranks:
                return
            for block in self._blocks(node, size):
                bounds = tuple(b * block for b in even_bounds(size // block, ranks, node.name))
                yield from self._with_bounds(node, way, state, bounds)
            return
        if state in (None, SAMPLE_CUT) or way.input is None:
            return
        assert state is not None
        if _axis(way.input, x, state.axis) != state.axis:
            return
        block, behind = way.block(node.settings, x.sample), None
        if block == 1 or not any(b % block for b in state.bounds):
            behind = way.behind(node.settings, x.sample, state.bounds)
        if behind is None:
            return
        if len(behind) != ranks + 1 or behind[0] != 0 or sorted(behind) != [*behind]:
            raise ValueError(
                f"layer {node.name} ({node.kind}): `behind` of its rule returns bounds {behind}: "
                f"return {ranks + 1} rising from 0; rank r has channels from bounds[r] on"
            )
        yield from self._with_bounds(node, way, state, behind)

    def _blocks(self, node: Node, size: int) -> Iterator[int]:
        """Yields the possible sizes of blocks of channels that must stay on one rank: 1, and larger
        ones that following layers need, such as the channels of an attention head."""
        yield 1
        seen, e = {1}, node.outputs[0]
        sample = self.graph.edges[e].sample
        for k in self._users[e]:
            for way in self.ways[k] if k < len(self.ways) else ():  # the end of the model has none
                block = way.block(self.graph.nodes[k].settings, sample)
                if block not in seen and not size % block and size // block >= self.ranks:
                    seen.add(block)
                    yield block

    def _with_bounds(
        self, node: Node, way: Way, state: AxisCut | None, bounds: Bounds
    ) -> Iterator[NodeChoice]:
        """Yields the choices that divide a layer in one way at the channels `bounds`: the output
        left cut and, if possible, gathered. `state` is the cut of the input (None: whole)."""
        y = self.graph.edges[node.outputs[0]]
        variables = _cuts(self.graph, node, way, bounds)
        cost = self.cost(node, *way.pattern.sends)
        if way.output is None or isinstance(way.output, Marker):
            output = None if way.output is None else way.output.cut(y, self.ranks)
            yield NodeChoice(way, cost, bounds, False, output, variables)
            return
        output = AxisCut(bounds, _axis(way.output, y, -1 if state is None else state.axis))
        choice = NodeChoice(way, cost, bounds, False, output, variables)
        if y.sample[output.axis] == bounds[-1]:
            yield choice
        if way.pattern.divides:
            yield self.gathered(node, choice)

    def terms(self, node: Node) -> tuple[tuple[int, AxisCut | None], ...]:
        """Returns (number, cut) for the parameters and buffers of a layer that every rank has
        whole, but computes for a part of the data only: parameters are marked PARTIAL_GRADIENT."""
        variables = self.graph.variables
        return tuple(
            (v, PARTIAL_GRADIENT if variables[v].is_parameter else None) for v in node.variables
        )

    def gathered(self, node: Node, choice: NodeChoice) -> NodeChoice:
        cost = choice.cost.plus(self.cost(node, GATHER_OUTPUT))
        return choice._replace(cost=cost, gathers=True, output=None)

    def cost(self, node: Node, *messages: Message) -> PlanCost:
        """Returns the cost of a layer's messages: the elements of one sample that ranks send."""
        return PlanCost(sent=sum(row.weight * row.carries(self.graph, node) for row in messages))


def channels(graph: Graph, node: Node, way: Way) -> int:
    """Returns how many channels a way divides: output channels, or rows of a table."""
    y = graph.edges[node.outputs[0]]
    if way.output is not None and not isinstance(way.output, Marker):
        return y.sample[_axis(way.output, y, -1)]
    sizes = variables_of(graph, node)
    return max(
        (graph.variables[sizes[p]].shape[a] for p, a in way.parameters.items() if p in sizes)
    )


def _axis(axis: Along, edge: Edge, same: int) -> int:
    """Returns `axis`, along which a layer is to be cut, as the number of an axis of one sample of
    `edge`. `...` (any axis) means the axis number `same`; a Marker means axis 0."""
    if isinstance(axis, Marker):
        return 0
    assert axis is not None
    return (same if isinstance(axis, EllipsisType) else axis) % len(edge.sample)


def _cuts(
    graph: Graph, node: Node, way: Way, bounds: Bounds
) -> tuple[tuple[int, AxisCut | None], ...]:
    """Returns (number, cut) for each parameter and buffer of a node whose layer is divided by `way`
    at the channels `bounds`; the cut is None for one that every rank has whole.

    A table of positions may be longer than any sample; the last rank then has the remaining rows.
    """
    cuts: list[tuple[int, AxisCut | None]] = []
    for name, v in variables_of(graph, node).items():
        axis, shape, ends = way.parameters.get(name), graph.variables[v].shape, bounds
        if way.input is POSITIONS and not way.pattern.divides and axis is not None:
            ends = (*bounds[:-1], max(bounds[-1], shape[axis]))
        if axis is not None and shape[axis] != ends[-1]:
            raise ValueError(
                f"layer {node.name} ({node.kind}): its rule cuts {name} of shape {shape} along "
                f"axis {axis}, whose size must be that of its {bounds[-1]} channels"
            )
        is_part = isinstance(way.output, Marker) and graph.variables[v].is_parameter
        uncut = PARTIAL_GRADIENT if is_part else None
        cuts.append((v, uncut if axis is None else AxisCut(ends, axis % len(shape))))
    return tuple(cuts)
