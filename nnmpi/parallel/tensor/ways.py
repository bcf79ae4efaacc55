"""Ways: how a layer may be divided among the ranks along tp, and which messages they send for it.

    input   output   a rank has                       then ranks sum
    whole   cut      some outputs         column      the gradient of the input
    cut     whole    some inputs          row         the output
    cut     cut      its channels alone   channels    nothing
    whole   whole    some rows of a table rows        both

With sequence parallelism (`--sequence-parallel`) "whole" may be cut along positions instead:

    input      output                           then ranks
    positions  cut        column                gather the input, and reduce-scatter its gradient
    cut        positions  row                   reduce-scatter the output, and gather its gradient
    whole      positions  rows                  the same
    positions  positions  positions             sum the gradients of parameters, once a step
    positions  positions  counts                also exchange how many tokens chose each expert
    positions  positions  all-to-all            send tokens to their experts, and results back

Where a layout says so (`--layout`), a layer is computed by samples: each rank has the whole layer,
and some samples of a micro-batch. Any layer can be, since none but BatchNorm mixes samples.

    input      output                           then ranks
    samples    samples    samples               sum the gradients of parameters, once a step
    whole      samples    samples               also gather the gradient of the input
    samples    whole      samples, gathered     also gather the output
    samples    cut        column                gather the input, and reduce-scatter its gradient
    cut        samples    row                   reduce-scatter the output, and gather its gradient

The messages that ranks send for a way are described by its `Pattern`. A new way is an entry of
`rules.py`. It may name a Pattern of its own, and the class by which a rank's part of the layer is
replaced. An axis that is none of channels, positions and samples needs a `Marker`; if only --layout
asks for it, also a row of the table `layout_axes` of an add-on. The messages of
a pattern determine the cost of a plan (`choices.py`), the description of a layer
(`sharding.py`), and a bound on their seconds (`planning/layer_messages.py`, which has a row for
each collective).
"""

from collections.abc import Callable, Iterator, Mapping
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

from nnmpi.addons import Table
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import bounds as parts_of
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge, Graph, Node
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.schedules.op import Kind

# ---- patterns: names of ways, and the messages of ranks along tp for each


def of_input(graph: Graph, node: Node) -> int:
    """Returns the number of elements of a layer's input, for one sample."""
    return graph.edges[node.inputs[0]].elements


def of_output(graph: Graph, node: Node) -> int:
    """Returns the number of elements of a layer's output, for one sample."""
    return graph.edges[node.outputs[0]].elements


def of_gradients(graph: Graph, node: Node) -> int:
    """Returns the elements per sample of those inputs that require a gradient."""
    edges = (graph.edges[e] for e in node.inputs)
    return sum(edge.elements for edge in edges if edge.requires_grad)


class Message(NamedTuple):
    """A collective, or messages, that ranks need in some passes of a divided layer.

    by       the collective, or MESSAGE for point-to-point messages
    carries  (graph, node): the elements for one sample, of all ranks together; for point-to-point
             messages, those of one unit, such as an image row
    passes   F: forward; I: for the gradient of the input; W: for those of the weights. A backward
             pass that is not split sends once what is in I, in W, or in both
    weight   how often a plan's cost counts the elements, in all passes: twice for an all-reduce
    words    its description; empty if another message's description includes it
    each     (graph, number of the node, ranks, rank): how many such units the rank sends to each
             rank; None for a collective
    """

    by: Collective
    carries: Callable[[Graph, Node], int]
    passes: frozenset[Kind]
    weight: int
    words: str = ""
    each: Callable[[Graph, int, int, int], list[int]] | None = None


class LayerMessage(NamedTuple):
    """A message that ranks send for one layer, with how many elements of a sample it carries.

    passes  the passes in which it is sent: those of `message`, except for gradients not needed
    bounds  rank r contributes, or gets, elements bounds[r] to bounds[r + 1] - 1 of bounds[-1]
    """

    message: Message
    elements: int
    passes: frozenset[Kind]
    bounds: Bounds = ()


class Pattern(NamedTuple):
    """The name, such as "column", and the messages that several ways of dividing a layer share.

    divides   whether such a way cuts channels, or rows of a table, that were not cut in its input
    """

    how: str
    sends: tuple[Message, ...] = ()
    divides: bool = False


F, I, W = (frozenset({kind}) for kind in (Kind.F, Kind.I, Kind.W))
SUM, GATHER, SCATTER = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER

SUM_OUTPUT = Message(SUM, of_output, F, 2, "all-reduce of the output")
SUM_GRADIENT = Message(SUM, of_gradients, I, 2, "all-reduce of the gradient of the input")
GATHER_OUTPUT = Message(GATHER, of_output, F, 1, "all-gather of the output")
GATHER_INPUT = Message(GATHER, of_input, F | W, 2, "all-gather of the input, twice")
SCATTER_GRADIENT = Message(SCATTER, of_input, I, 1, "reduce-scatter of its gradient")
SCATTER_OUTPUT = Message(SCATTER, of_output, F, 1, "reduce-scatter of the output")
GATHER_INPUT_GRADIENT = Message(GATHER, of_gradients, I, 1, "all-gather of the input's gradient")
GATHER_GRADIENT = Message(GATHER, of_output, I | W, 1, "all-gather of its gradient")


class AxisCut(NamedTuple):
    """How a tensor is cut along an axis among ranks: rank r has bounds[r] to bounds[r + 1] - 1.

    axis  the number of the axis; for activations it counts the axes of one sample, without that of
          samples
    """

    bounds: Bounds
    axis: int


PARTIAL_GRADIENT = AxisCut((), 0)
"""Marks a whole parameter of whose gradient each rank has a term."""

SAMPLE_CUT = AxisCut((), -1)
"""Marks an activation with some samples on each rank, by micro-batch."""


def _of_positions(edge: Edge, ranks: int) -> AxisCut | None:
    """Returns the cut along positions of an activation (positions, features); None for others."""
    fits = len(edge.sample) == 2 and edge.sample[0] >= ranks
    return AxisCut(parts_of(edge.sample[0], ranks), 0) if fits else None


def _of_samples(edge: Edge, ranks: int) -> AxisCut | None:
    """Returns SAMPLE_CUT for an activation with a row for each sample, or None."""
    return SAMPLE_CUT if edge.of_samples and edge.axes[0].size == 1 else None


class LayoutCut(NamedTuple):
    """An add-on's functions for cuts along an axis of its own, such as image rows, for --layout.

    way      the name of such a way, as --layout names it
    ways     (layer class, ways of its rule): these ways, and those that cut along this axis
    choices  (NodeChoices, number of the node, way, cuts of the inputs): yields choices for a node
             that is divided in this way, as `NodeChoices.of` does
    refuse   (graph, number of the node, ranks): raises ValueError if the node cannot be cut so
    """

    way: str
    ways: Callable[[type[Module], "tuple[Way, ...]"], "tuple[Way, ...]"]
    choices: Callable[..., Iterator[Any]]
    refuse: Callable[[Graph, int, int], None]


class Marker(NamedTuple):
    """An axis, other than that of channels, along which ranks may cut the input or output of a
    layer: positions, samples, or an axis of an add-on. It stands in a Way's `input` and `output`.

    cut        (edge of the graph, ranks): the AxisCut of this tensor; None if it cannot be cut so
    words      added to the name of a way whose input or output alone is cut so
    of_layout  the functions of an add-on whose axis is cut only if --layout asks for it, or None
    """

    cut: Callable[[Edge, int], AxisCut | None]
    words: str = ""
    of_layout: LayoutCut | None = None


POSITIONS = Marker(_of_positions, " of positions")
"""Along positions, the first axis of a sample (T, C); only for sequence parallelism."""

SAMPLES = Marker(_of_samples, " of samples")
"""Along samples; only if --layout asks for it."""

LAYOUT_AXES: Table[Marker] = Table("layout_axes")
"""By the name of an axis of --layout: the axis of an add-on."""


def axis_of_way(how: str) -> Marker | None:
    """Returns the axis of an add-on along which a way of --layout cuts; None for other ways."""
    return next((a for a in LAYOUT_AXES.rows() if a.of_layout and a.of_layout.way == how), None)


Along: TypeAlias = int | EllipsisType | Marker | None
"""The axis along which a way has its input or output cut; None: it is whole."""

PATTERNS: Mapping[tuple[Along, Along], Pattern] = {
    (None, ...): Pattern("column", (SUM_GRADIENT,), divides=True),
    (..., None): Pattern("row", (SUM_OUTPUT,)),
    (None, None): Pattern("rows", (SUM_OUTPUT, SUM_GRADIENT), divides=True),
    (..., ...): Pattern("channels"),
    (POSITIONS, ...): Pattern("column", (GATHER_INPUT, SCATTER_GRADIENT), divides=True),
    (..., POSITIONS): Pattern("row", (SCATTER_OUTPUT, GATHER_GRADIENT)),
    (None, POSITIONS): Pattern("rows", (SCATTER_OUTPUT, GATHER_GRADIENT), divides=True),
    (POSITIONS, POSITIONS): Pattern("positions"),
    (SAMPLES, ...): Pattern("column", (GATHER_INPUT, SCATTER_GRADIENT), divides=True),
    (..., SAMPLES): Pattern("row", (SCATTER_OUTPUT, GATHER_GRADIENT)),
    (SAMPLES, SAMPLES): Pattern("samples"),
    (None, SAMPLES): Pattern("samples", (GATHER_INPUT_GRADIENT,)),
}
"""The pattern of a way that names none, by its input and output; `...` stands for any axis."""

REPLICATED = Pattern("copy")


# ---- ways


Options = Mapping[str, Any]
"""The attributes of a layer that are plain values, by name."""

NONE: Mapping[str, int] = {}


def always(settings: Options) -> bool:
    """Returns True: a layer with any settings may be divided. This is the default of `Way.fits`."""
    return True


def same(settings: Options, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """The default of `Way.behind`: the output is cut at the same channels as the input."""
    return bounds


def one(settings: Options, sample: tuple[int, ...]) -> int:
    """Returns 1, the default of `Way.block`: each input channel may be on another rank."""
    return 1


class Way(NamedTuple):
    """One way to divide a layer among ranks, such as column or row: which axes of input, output and
    parameters are cut. A user's layer lists them in `sharding`, the preferred one first.

    A layer with this attribute is called with one tensor and contains no modules; a subclass that
    overrides `forward` needs its own list. `forward` gets a part of the input, with parts of the
    parameters under the same names, and nnmpi adds the sums. It must not read the shape of another
    layer's weight, which is that of a part. A way that cuts channels and leaves a parameter whole
    is refused: the output of a row layer is a sum over ranks, which would contain a whole bias once
    per rank. With `Way(POSITIONS, POSITIONS)` a layer treats each position of (T, C) alone, and
    `--sequence-parallel` gives it some positions; its parameters may stay whole.

    input       the axis of a sample along which the input is cut; None: whole; ...: any axis;
                POSITIONS, SAMPLES: whole, except that these are divided among the ranks
    output      the same for the output; ... is the axis of the input
    parameters  the axis along which each parameter or buffer is cut, by name; others are whole
    sizes       attributes that count channels, which are scaled down in a part
    fits        a function of the layer's settings: whether such a layer can be divided so
    block       (settings, shape of a whole input sample): how many consecutive channels of the
                input must be on one rank
    behind      (settings, shape of a whole input sample, bounds of the input's channels): the
                bounds of the output; None if the layer cannot be divided so
    divided     a word for messages: what is divided, such as "vocabulary", if not output channels
    named       the Pattern (name and messages) of the way; None: the one in `PATTERNS` that has the
                same input and output
    inputs      how many tensors the layer is called with; of several, all are whole, or all are cut
                alike, as along positions
    part        the class of a rank's part of the layer, whose own ops send the messages; None: the
                layer itself, with the messages before and behind its `forward`
    """

    input: Along = None
    output: Along = None
    parameters: Mapping[str, int] = NONE
    sizes: tuple[str, ...] = ()
    fits: Callable[[Options], bool] = always
    block: Callable[[Options, tuple[int, ...]], int] = one
    behind: Callable[[Options, tuple[int, ...], Bounds], Bounds | None] = same
    divided: str = "vocabulary"
    named: Pattern | None = None
    inputs: int = 1
    part: type[Module] | None = None

    @property
    def pattern(self) -> Pattern:
        """The name of this way, such as "column", and the messages that ranks send for it."""
        if self.named is not None:
            return self.named
        i = ... if isinstance(self.input, int) else self.input
        o = ... if isinstance(self.output, int) else self.output
        is_copy = i is None and o in (None, POSITIONS) and not self.parameters
        return REPLICATED if is_copy else PATTERNS.get((i, o), REPLICATED)

    @property
    def markers(self) -> set[Marker]:
        """The markers of this way's axes: POSITIONS, SAMPLES, or add-ons'."""
        return {x for x in (self.input, self.output) if isinstance(x, Marker)}

    @property
    def of_layout(self) -> LayoutCut | None:
        """The add-on's functions for a cut of --layout only, or None."""
        return next((marker.of_layout for marker in self.markers if marker.of_layout), None)

    @property
    def name(self) -> str:
        """The name of this way, such as "column", followed by " of positions" or " of samples" if
        only its input or only its output is cut along them."""
        how = self.pattern.how
        if self.input is self.output or how == "samples":
            return how
        return how + "".join(marker.words for marker in self.markers)

    @property
    def rebuilds(self) -> bool:
        """True if ranks need a new layer, not the original on a part."""
        return bool(self.part or self.pattern.sends or self.parameters or self.sizes)


WHOLE = Way()
"""Every rank computes the whole layer."""

ON_ONE_RANK = Way(named=Pattern("branch"))
"""The way of a node that only one rank computes; see `OwnedParts`."""

ELEMENTWISE_WAY = Way(..., ...)
"""The way of a layer that treats each element separately."""

BY_CHANNEL = Way(0, 0)
"""The way of a layer without parameters that treats channels separately."""
