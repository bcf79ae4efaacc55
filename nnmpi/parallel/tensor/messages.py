"""Messages: what ranks along tp send for a layer, as values; a way of cutting names its own.

    passes    F: forward    I: for the gradient of the input    W: for those of the weights

A pass that is not in two halves sends what is in I, in W, or in both, once. Who reads a message:

    choices.py                   what a plan costs
    sharding.py                  what is said of a layer
    arrangement/traffic_tp.py    bytes, messages, and how long sums are
    parallelize.py, layers.py    the run, which sends it
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from nnmpi.nn.graph import Graph, Node
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.schedules.op import Kind


class Collective(Enum):
    """What ranks do together; `CARRIED_OUT` in `arrangement/traffic_tp.py` prices each."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    GATHER_OF_COUNTS = "all-gather of integers"
    ALL_TO_ALL = "all-to-all"


# ---- what is carried: numbers of a sample


def of_input(graph: Graph, node: Node) -> int:
    """The numbers of the input."""
    return graph.edges[node.inputs[0]].numbers


def of_output(graph: Graph, node: Node) -> int:
    """The numbers of the output."""
    return graph.edges[node.outputs[0]].numbers


def of_gradients(graph: Graph, node: Node) -> int:
    """The numbers of the gradients that a node gives to its inputs."""
    edges = (graph.edges[e] for e in node.inputs)
    return sum(edge.numbers for edge in edges if edge.requires_grad)


class Message(NamedTuple):
    """What ranks send in some passes for a layer that is cut in some way.

    by       the collective
    numbers  how many numbers of a sample it carries, of all ranks together
    passes   the kinds of passes that send it
    words    what is said of it; nothing if that is said with another one
    weight   how often a plan's cost counts its numbers, in all passes: an all-reduce twice
    """

    by: Collective
    numbers: Callable[[Graph, Node], int]
    passes: frozenset[Kind]
    words: str
    weight: int = 0


class LayerMessage(NamedTuple):
    """A message of one layer, with its `numbers` of a sample.

    bounds  of which rank r brings or gets bounds[r] to bounds[r + 1], of bounds[-1]
    """

    message: Message
    numbers: int
    passes: frozenset[Kind]
    bounds: Bounds = ()


FORWARD, OF_INPUT, OF_WEIGHTS = (frozenset({kind}) for kind in (Kind.F, Kind.I, Kind.W))

SUM_OUTPUT = Message(
    Collective.ALL_REDUCE, of_output, FORWARD, "all-reduce of the output", weight=2
)
SUM_GRADIENT = Message(
    *(Collective.ALL_REDUCE, of_gradients, OF_INPUT, "all-reduce of the gradient of the input"),
    weight=2,
)
GATHER_OUTPUT = Message(
    Collective.ALL_GATHER, of_output, FORWARD, "all-gather of the output", weight=1
)
GATHER_INPUT = Message(
    *(Collective.ALL_GATHER, of_input, FORWARD | OF_WEIGHTS, "all-gather of the input, twice"),
    weight=2,
)
SCATTER_GRADIENT = Message(
    Collective.REDUCE_SCATTER, of_input, OF_INPUT, "reduce-scatter of its gradient", weight=1
)
SCATTER_OUTPUT = Message(
    Collective.REDUCE_SCATTER, of_output, FORWARD, "reduce-scatter of the output", weight=1
)
GATHER_GRADIENT = Message(
    *(Collective.ALL_GATHER, of_output, OF_INPUT | OF_WEIGHTS, "all-gather of its gradient"),
    weight=1,
)
GATHER_GRADIENT_OF_ROWS = GATHER_GRADIENT._replace(passes=OF_WEIGHTS)
"""Indices have no gradient."""

# Of experts; a plan does not count them, as no other way leaves as few activations whole.
COUNTS = Message(
    *(Collective.GATHER_OF_COUNTS, of_output, FORWARD),
    "all-gather of how many tokens chose each expert",
)
TOKENS = Message(
    Collective.ALL_TO_ALL, of_input, FORWARD, "all-to-all of tokens, and back of results"
)
RESULTS = Message(Collective.ALL_TO_ALL, of_output, FORWARD, "")
GRADIENTS_OF_RESULTS = Message(
    Collective.ALL_TO_ALL, of_output, OF_INPUT | OF_WEIGHTS, "the same of their gradients"
)
GRADIENTS_OF_TOKENS = Message(Collective.ALL_TO_ALL, of_input, OF_INPUT, "")
