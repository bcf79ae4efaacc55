"""Seconds of units by roofline, for machines that are described.

    a kernel   max(operations / rate + start, bytes / bandwidth)     of each layer and pass
    a block    max(sum of its kernels, number of its kernels * launch)     of each pass

Products have a `start`, so that small ones reach a smaller share of the peak. Where a machine
computes their outputs in whole tiles, so many at once, tiles that are not full cost as much as full
ones. Attention reads and
writes its scores, unless it is flash: then it is one kernel each way, at half the rate of products,
which moves only queries, keys, values, the output and their gradients. Layers between products are
bound by memory. The loss is a softmax in float32, op by op. The host launches kernels while the
device computes, so launching shows only where kernels are short.

Left out are the efficiency of products by shape, except for tiles; contention between exchanges
and kernels; rotary positions; kernels that a compiler joins; more than two levels of a network;
memory that an allocator loses; clocks that fall under load.
"""

import re
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from itertools import chain, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from nnmpi.nn.graph import Graph, Node
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.context.sequence_cut import sequences_of
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.planning.candidate import Candidate
from nnmpi.planning.machine import Machine, Sheet
from nnmpi.planning.unit_times import ModelTimes, parts_of_nodes

F, I, W = range(3)
"""Passes: forward, gradients of the input, gradients of parameters; the columns of UnitTimes."""


FLASH = 0.5
"""Rate of flash attention over that of products: FlashAttention-2 reaches 35% of an H100's peak
(Shah et al. 2024), large products 65 to 80%."""

TINY = 1e-30  # seconds, against a division by 0

WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of a number, by type."""


ROWS, OUTPUTS, INPUTS, ALL, EACH = range(5)
"""The numbers that a length of a product follows: samples of a rank; outputs or inputs of a weight
that it has; nothing; or, for the number of products, its samples and its part of the node."""

UNIT = (1.0, ALL)


class Product(NamedTuple):
    """The output of a product: its two lengths, and the number of such products; each with what it
    follows."""

    rows: tuple[float, int] = UNIT
    columns: tuple[float, int] = UNIT
    times: tuple[float, int] = UNIT


class Kernel(NamedTuple):
    """A kernel of a node in a pass: operations and bytes for each sample, and bytes of weights;
    without a product, its operations are its own to divide."""

    column: int
    operations: float
    moved: float
    fixed: float = 0.0
    product: Product | None = None


class RooflineTimes(ModelTimes):
    """The seconds of the units of a model on a described machine; see ModelTimes."""

    def __init__(self, graph: Graph, machine: Machine, dtype: str, sheet: Sheet) -> None:
        super().__init__(graph, machine, dtype)
        self.sheet, self._width = sheet, WIDTHS.get(dtype, 4)
        self._of_shardings = dict[tuple[object, int], np.ndarray]()
        self._parts = dict[tuple[int, ...], tuple[Sharding, np.ndarray, np.ndarray]]()

    def by(self, sheet: Sheet) -> "RooflineTimes":
        """The seconds of the same units by the figures of another machine."""
        other = copy(self)
        other._kernels, other._blocks = self._kernels, self._blocks
        other.sheet, other._of_shardings = sheet, {}
        return other

    def whole(self, samples: int) -> np.ndarray:
        """The times of all units on a rank that computes them undivided."""
        return self.of(UNSHARDED, Config(), samples)

    def _once(self, sharding: Sharding, by: Config | Candidate, samples: int) -> np.ndarray:
        way = sharding.ranks, sequences_of(sharding).ranks, by.sequence_parallel, by.layout or ""
        if (way, samples) not in self._of_shardings:
            of_nodes = self._of_nodes(sharding, samples)
            owned, ranks = sharding.owned, range(sharding.ranks)
            runs = [
                [float(owned.runs(k, rank)) for k in range(len(of_nodes))]
                for rank in (ranks if owned.nodes else ranks[:1])
            ]
            starts = [unit.nodes.start for unit in self.units]
            of_ranks = [np.add.reduceat(np.array(row)[:, None] * of_nodes, starts) for row in runs]
            self._of_shardings[way, samples] = np.max(of_ranks, axis=0)
        return self._of_shardings[way, samples]

    @cached_property
    def _kernels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The node of each kernel, its row of numbers, and its Product."""
        rows = [
            (k, kernel)
            for k, node in enumerate(self.graph.nodes)
            for kernel in self._kernels_of(node)
        ]
        products = np.array([kernel.product or Product() for _, kernel in rows])
        return (
            np.array([k for k, _ in rows]),
            np.array([kernel[:4] for _, kernel in rows]),
            products,
        )

    def _of_nodes(self, sharding: Sharding, samples: int) -> np.ndarray:
        """The seconds of nodes: shape (nodes, 3)."""
        sheet, (nodes, rows, outputs) = self.sheet, self._kernels
        key = id(sharding.layers), id(sharding.edges), id(sequences_of(sharding))
        if key not in self._parts:  # with the sharding, so that no other one gets these ids
            of_nodes = np.array(parts_of_nodes(sharding, self.graph.nodes))
            of_weights = np.array([weight_parts(sharding, node) for node in self.graph.nodes])
            self._parts[key] = sharding, of_nodes, of_weights
        parts, weights = (array[nodes] for array in self._parts[key][1:])
        operations, moved = (
            samples * parts * rows[:, 1],
            parts * (samples * rows[:, 2] + rows[:, 3]),
        )
        operations = operations * in_tiles(outputs, parts, weights, samples, sheet)
        products = np.where(operations > 0, operations / sheet.rate + sheet.start, 0.0)
        device, host = np.zeros((2, len(self.graph.nodes), 3))
        at = nodes, rows[:, 0].astype(int)
        np.add.at(device, at, np.maximum(products, moved / sheet.bandwidth))
        np.add.at(host, at, sheet.launch)
        return with_launches(device, host, self._blocks)

    @cached_property
    def _blocks(self) -> np.ndarray:
        """The number of each node's block; layers of no block are alone, with the ops behind
        them."""
        names = list[str]()
        for node in self.graph.nodes:
            block = re.match(r"(.*?\.\d+)\.", node.name)
            is_behind = node.layer is None and names
            names.append(block[1] if block else names[-1] if is_behind else node.name)
        return np.unique(names, return_inverse=True)[1]

    def _kernels_of(self, node: Node) -> Iterator[Kernel]:
        """Yields the kernels of a node; a stage needs no gradient of the model's input."""
        graph, w = self.graph, self._width
        needs = any(graph.edges[e].requires_grad for e in node.inputs)
        kernels = chain(KERNELS.get(node.kind, moving)(graph, node, w), sums(graph, node, w))
        if self.sheet.flash and node.kind == "SelfAttention":
            kernels = chain(flash_attention(graph, node, w))
        yield from (k for k in kernels if needs or k.column != I)
        if graph.outputs[0] in node.outputs:
            yield from loss(graph, node, w)


def model_times(graph: Graph, machine: Machine, dtype: str) -> ModelTimes:
    """The seconds of the units of a model: by roofline on a described machine, otherwise as
    measured or estimated."""
    if machine.sheet is not None:
        return RooflineTimes(graph, machine, dtype, machine.sheet)
    return ModelTimes(graph, machine, dtype)


def with_launches(device: np.ndarray, host: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """The seconds of nodes on a device, with those for which it waits until the host has launched
    the kernels of a block, in each half of a step; shape (nodes, 3)."""
    seconds = device.copy()
    for half in (slice(F, I), slice(I, None)):
        busy, launching = (np.bincount(blocks, x[:, half].sum(axis=1)) for x in (device, host))
        waiting = np.maximum(1 - busy / np.maximum(launching, TINY), 0.0)
        seconds[:, half] += waiting[blocks][:, None] * host[:, half]
    return seconds


# ---- outputs of products


def weight_parts(sharding: Sharding, node: Node) -> tuple[float, float]:
    """The largest part that a rank along tp has of the outputs and of the inputs of a weight."""
    cuts = (sharding.variables[v] for v in node.variables if v in sharding.variables)
    cut = next((cut for cut in cuts if cut.bounds), None)
    if cut is None:
        return 1.0, 1.0
    part = max(b - a for a, b in pairwise(cut.bounds)) / cut.bounds[-1]
    return (part, 1.0) if cut.axis == 0 else (1.0, part)


def in_tiles(
    outputs: np.ndarray, parts: np.ndarray, weights: np.ndarray, samples: int, sheet: Sheet
) -> np.ndarray:
    """How many times the operations of each kernel count: whole tiles of its output are computed,
    and as many at once as the machine has room for."""
    each = samples * parts
    follows = np.array([each / weights.prod(axis=1), *weights.T, np.ones(len(parts)), each])
    scale = np.take_along_axis(follows.T, outputs[:, :, 1].astype(int), axis=1)
    lengths = np.maximum(np.rint(outputs[:, :, 0] * scale), 1.0)
    tiles = np.ceil(lengths[:, :2] / sheet.tile).prod(axis=1) * lengths[:, 2]
    computed = np.ceil(tiles / sheet.at_once) * sheet.at_once * float(sheet.tile) ** 2
    has_one = (outputs[:, :, 1] != ALL).any(axis=1)
    factors: np.ndarray = np.where(has_one, computed / lengths.prod(axis=1), 1.0)
    return factors


# ---- kernels of nodes; w: bytes of a number


def _made(graph: Graph, node: Node) -> int:
    return sum(graph.edges[e].elements for e in node.outputs)


def products(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields a product in each pass, which reads two factors and writes the result."""
    weights = w * sum(graph.variables[v].size for v in node.variables)
    moved = w * (_made(graph, node) + sum(graph.edges[e].elements for e in node.inputs))
    shape = max((graph.variables[v].shape for v in node.variables), key=prod)
    rows = work(graph, node) / prod(shape), ROWS
    outs, ins = (float(shape[0]), OUTPUTS), (float(prod(shape[1:])), INPUTS)
    for column, sides in enumerate(((rows, outs), (rows, ins), (ins, outs))):
        yield Kernel(column, 2.0 * work(graph, node), moved, weights, Product(*sides))


def attention(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields scores, softmax and values as kernels of their own, each of all positions squared:
    masks save no work."""
    made, positions = _made(graph, node), graph.edges[node.outputs[0]].sample[0]
    heads = node.settings["num_heads"]
    scores = positions**2 * heads
    product = 2.0 * made * positions, w * (scores + 2 * made), 0.0
    square, thin = (
        Product((float(positions), ALL), (width, ALL), (float(heads), EACH))
        for width in (float(positions), made / positions / heads)
    )
    # softmax with its mask reads and writes scores, and so does dropout with a mask of bytes
    yield from (Kernel(F, *product, square), Kernel(F, *product, thin))
    yield Kernel(F, 0, 2 * w * scores)
    yield from (Kernel(I, *product, of) for of in (square, thin, thin, thin))
    yield Kernel(I, 0, 3 * w * scores)
    if node.settings["dropout"]:
        yield from (Kernel(column, 0, (2 * w + 1) * scores) for column in (F, I))


def flash_attention(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields one kernel forward, and one back that computes scores again; exponentials between its
    products slow them down."""
    ends = _made(graph, node) + sum(graph.edges[e].elements for e in node.inputs)
    operations = 2.0 * work(graph, node) / FLASH
    yield Kernel(F, operations, w * ends)
    yield Kernel(I, 2.5 * operations, 2 * w * ends)


def moving(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields a kernel for each pass that moves bytes, as MOVED says; others read their inputs and
    write their outputs, and half as many bytes more in the backward pass."""
    if any(len(graph.variables[v].shape) > 1 for v in node.variables) and node.kind not in MOVED:
        yield from products(graph, node, w)
        return
    made = _made(graph, node)
    ends = (made + sum(graph.edges[e].elements for e in node.inputs)) / max(made, 1)
    times = (0, 0, 0) if node.settings.get("p") == 0 else (ends, 1.5 * ends, 0)
    for column, of_made in enumerate(MOVED.get(node.kind, times)):
        if of_made:
            yield Kernel(column, 0, of_made * made * w)


def loss(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields the loss of the model's scores: a softmax in float32, and its gradient, each op of
    which reads and writes all scores."""
    made = _made(graph, node)
    yield from (Kernel(F, 0, (w + 36) * made), Kernel(I, 0, (w + 12) * made))


def sums(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields the addition of a gradient to those of earlier micro-batches."""
    trained = sum(prod(v.shape) for v in map(graph.variables.__getitem__, node.variables)
                  if v.is_trained)  # fmt: skip
    if trained and node.kind != "Embedding":
        yield Kernel(W, 0, 0, 3 * w * trained)


KERNELS = {"Linear": products, "SelfAttention": attention}
"""The kernels of nodes by kind; those of others move bytes."""

MOVED = {
    **dict.fromkeys(("LayerNorm", "RMSNorm"), (2, 3, 2)),
    "add": (3, 3, 0),
    "Embedding": (2, 0, 3),
    "PositionalEmbedding": (2, 0, 3),
    **dict.fromkeys(("ChannelsFirst", "Flatten"), (0, 0, 0)),
}
"""How often passes F, I and W read or write the output of a node, by its kind."""
