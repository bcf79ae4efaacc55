"""Patterns: the names of ways of cutting a layer, and the messages of ranks along tp for each.

Who reads them:

    choices.py                   what a plan costs
    sharding.py                  what is said of a layer
    planning/layer_messages.py   a bound of what they take
    parallelize.py, layers.py    the run, which sends them

A new collective needs a row in `layer_messages.py`; all else follows from the row of a message.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import EllipsisType
from typing import NamedTuple, TypeAlias

from nnmpi.collectives.step import Collective
from nnmpi.nn.graph import Graph, Node
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.schedules.op import Kind


def of_input(graph: Graph, node: Node) -> int:
    """The numbers of the input, of a sample."""
    return graph.edges[node.inputs[0]].numbers


def of_output(graph: Graph, node: Node) -> int:
    """The numbers of the output, of a sample."""
    return graph.edges[node.outputs[0]].numbers


def of_gradients(graph: Graph, node: Node) -> int:
    """The numbers of the gradients that a node gives to its inputs, of a sample."""
    edges = (graph.edges[e] for e in node.inputs)
    return sum(edge.numbers for edge in edges if edge.requires_grad)


def of_row(graph: Graph, node: Node) -> int:
    """The numbers of a row of the images that come in, of a sample."""
    return of_input(graph, node) // graph.edges[node.inputs[0]].sample[1]


class Message(NamedTuple):
    """What ranks send in some passes for a layer that is cut in some way.

    by       the collective, or a message
    carries  how many numbers of a sample, of all ranks together; of a halo those of one row
    passes   F: forward; I: for the gradient of the input; W: for those of the weights. A backward
             pass that is not in two halves sends once what is in I, in W, or in both
    weight   how often a plan's cost counts the numbers, in all passes: those of an all-reduce twice
    words    what is said of it; nothing if that is said with another one
    """

    by: Collective
    carries: Callable[[Graph, Node], int]
    passes: frozenset[Kind]
    weight: int
    words: str = ""


class LayerMessage(NamedTuple):
    """A message of one layer, with the numbers of a sample that it carries.

    passes  those of its row, but for a gradient that nobody needs
    bounds  rank r brings, or gets, bounds[r] to bounds[r + 1] of bounds[-1]
    """

    row: Message
    numbers: int
    passes: frozenset[Kind]
    bounds: Bounds = ()


class Pattern(NamedTuple):
    """What a way is called, and what ranks send for it.

    how      its name
    sends    the messages, in the order in which they are told
    divides  whether it cuts what is not cut in its input: channels, or rows of a table
    """

    how: str
    sends: tuple[Message, ...] = ()
    divides: bool = False


F, I, W = (frozenset({kind}) for kind in (Kind.F, Kind.I, Kind.W))
SUM, GATHER, SCATTER = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
GATHER_COUNTS, EXCHANGE = Collective.GATHER_COUNTS, Collective.ALL_TO_ALL

SUM_OUTPUT = Message(SUM, of_output, F, 2, "all-reduce of the output")
SUM_GRADIENT = Message(SUM, of_gradients, I, 2, "all-reduce of the gradient of the input")
GATHER_OUTPUT = Message(GATHER, of_output, F, 1, "all-gather of the output")
GATHER_INPUT = Message(GATHER, of_input, F | W, 2, "all-gather of the input, twice")
SCATTER_GRADIENT = Message(SCATTER, of_input, I, 1, "reduce-scatter of its gradient")
SCATTER_OUTPUT = Message(SCATTER, of_output, F, 1, "reduce-scatter of the output")
GATHER_INPUT_GRADIENT = Message(GATHER, of_gradients, I, 1, "all-gather of the input's gradient")
GATHER_GRADIENT = Message(GATHER, of_output, I | W, 1, "all-gather of its gradient")

# of experts: no cost, as no other way leaves as few activations whole
COUNTS = Message(GATHER_COUNTS, of_output, F, 0, "all-gather of how many tokens chose each expert")
TOKENS = Message(EXCHANGE, of_input, F, 0, "all-to-all of tokens, and back of results")
RESULTS = Message(EXCHANGE, of_output, F, 0)
RESULT_GRADIENTS = Message(EXCHANGE, of_output, I | W, 0, "the same of their gradients")
TOKEN_GRADIENTS = Message(EXCHANGE, of_input, I, 0)

# of images that are cut by rows: how many rows there are depends on the ranks (`choices.py`)
HALO = Message(Collective.MESSAGE, of_row, F, 0, "messages of rows to neighbours")
HALO_GRADIENT = Message(Collective.MESSAGE, of_row, I, 0, "the same of their gradients, back")


class Marker(Enum):
    """What a way may have in place of an axis."""

    POSITIONS = 0
    SAMPLES = 1
    IMAGE_ROWS = 2


POSITIONS = Marker.POSITIONS
"""As the input or output of a way: cut along positions, the first axis of a sample (T, C), which
sequence parallelism alone does."""

SAMPLES = Marker.SAMPLES
"""As the input or output of a way: cut along samples, which a layout by layers alone does."""

IMAGE_ROWS = Marker.IMAGE_ROWS
"""As the input or output of a way: cut along the rows of images, the second axis of a sample
(C, H, W), which a layout alone does."""

Along: TypeAlias = int | EllipsisType | Marker | None
"""Where a way has its input or output cut; None: it is whole."""

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
    (IMAGE_ROWS, IMAGE_ROWS): Pattern("spatial"),
    (IMAGE_ROWS, None): Pattern("spatial", (SUM_OUTPUT,)),
}
"""The pattern of a way that names none, by its input and output; ...: cut along some axis."""

COPY = Pattern("copy")
ROUTER = Pattern("counts", (COUNTS,))
EXPERTS = Pattern("all-to-all", (TOKENS, RESULTS, RESULT_GRADIENTS, TOKEN_GRADIENTS), divides=True)
SPATIAL = Pattern("spatial", (HALO, HALO_GRADIENT))
SPATIAL_OF_WHOLE = Pattern("spatial", (HALO, HALO_GRADIENT, GATHER_INPUT_GRADIENT))
