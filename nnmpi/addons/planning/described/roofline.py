"""Estimates the seconds of a model's units on machines that a data sheet describes, by the roofline
model.

    a kernel   max(operations / rate + start, bytes / bandwidth)     of each layer and pass
    a block    max(sum of its kernels, number of its kernels * launch)     of each pass

Matrix products have a `start`, so that small ones reach a smaller share of the peak. If a machine
computes their outputs in whole tiles, several at once, a partial tile costs as much as a full one.
Attention reads and writes its scores. Flash attention does not: it is one kernel in each pass, at
half the rate of products, and moves only queries, keys, values, the output and their gradients.
Layers between products are bound by memory. The loss is a softmax in float32, op by op. The host
launches kernels while the device computes, so launching counts only where kernels are short.

The model ignores the efficiency of products by shape, except for tiles; contention between
exchanges and kernels; rotary positions; kernels that a compiler fuses; more than two levels of a
network; memory that an allocator loses; clocks that fall under load."""

import re
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from itertools import chain, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.machine import Machine, Sheet
from nnmpi.addons.planning.unit_times import ModelTimes, parts_of_nodes
from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.nn.graph import Graph, Node
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding

F, I, W = range(3)
"""Passes: forward, gradients of the input, gradients of parameters; the columns of UnitTimes."""


FLASH = 0.5
"""The rate of flash attention, relative to that of products: FlashAttention-2 reaches 35% of an
H100's peak (Shah et al. 2024), large products 65 to 80%."""

TINY = 1e-30  # seconds, against a division by 0

WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of a number, by type."""


ROWS, OUTPUTS, INPUTS, ALL, EACH = range(5)
"""The quantity that scales a length of a product, by column of `follows` in `in_tiles`: ROWS, the
samples of a rank; OUTPUTS and INPUTS, its part of a weight's outputs or inputs; ALL, nothing; EACH,
for the number of products, the samples times the rank's part of the node."""

UNIT = (1.0, ALL)


class Product(NamedTuple):
    """The shape of a matrix product's output, and how many such products there are: pairs (length
    for one sample, what scales it on a rank: ROWS to EACH)."""

    rows: tuple[float, int] = UNIT
    columns: tuple[float, int] = UNIT
    times: tuple[float, int] = UNIT


class Kernel(NamedTuple):
    """A kernel that a node of the graph runs in a pass (`column`: F, I or W). It makes `operations`
    and moves `moved` bytes for each sample, and moves `fixed` bytes of weights once. If it has a
    `product`, its operations are rounded up to whole tiles of the output."""

    column: int
    operations: float
    moved: float
    fixed: float = 0.0
    product: Product | None = None


class RooflineTimes(ModelTimes):
    """The seconds of a model's units by the roofline model, from a data sheet."""

    def __init__(self, graph: Graph, machine: Machine, dtype: str, sheet: Sheet) -> None:
        super().__init__(graph, machine, dtype)
        self.sheet, self._width = sheet, WIDTHS.get(dtype, 4)
        self._of_shardings = dict[tuple[object, int], np.ndarray]()
        self._parts = dict[tuple[int, ...], tuple[Sharding, np.ndarray, np.ndarray]]()

    def by(self, sheet: Sheet) -> "RooflineTimes":
        """Returns an object for the same model with the figures of another machine (`sheet`)."""
        other = copy(self)
        other._kernels, other._blocks = self._kernels, self._blocks
        other.sheet, other._of_shardings = sheet, {}
        return other

    def whole(self, samples: int) -> np.ndarray:
        """Returns the seconds of undivided units on a rank, (units, 3) for F, I and W."""
        return self.of(UNSHARDED, Config(), samples)

    def _once(self, sharding: Sharding, by: Config | Candidate, samples: int) -> np.ndarray:
        way = sharding.ranks, sequences_of(sharding).ranks, by.sequence_parallel, by.layout or ""
        if (way, samples) not in self._of_shardings:
            of_nodes = self._of_nodes(sharding, samples)
            ranks = range(sharding.ranks) if sharding.owned.nodes else range(1)
            of_ranks = np.repeat(of_nodes[None], len(ranks), axis=0)
            for k, owner in sharding.owned.nodes.items():
                of_ranks[np.arange(len(ranks)) != owner, k] = 0.0
            starts = [unit.nodes.start for unit in self.units]
            of_units = np.add.reduceat(of_ranks, starts, axis=1)
            self._of_shardings[way, samples] = np.max(of_units, axis=0)
        return self._of_shardings[way, samples]

    @cached_property
    def _kernels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All kernels of the model, as arrays with a row per kernel: the index of its graph node;
        its numbers (column, operations, moved, fixed), with column 0, 1 or 2 for pass F, I or W;
        and those of its Product."""
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
        """Returns the seconds of a rank's part of each node, (nodes, 3) for F, I and W."""
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
        """The index of each node's block; a layer outside blocks is one with the ops after it."""
        names = list[str]()
        for node in self.graph.nodes:
            block = re.match(r"(.*?\.\d+)\.", node.name)
            is_behind = node.layer is None and names
            names.append(block[1] if block else names[-1] if is_behind else node.name)
        return np.unique(names, return_inverse=True)[1]

    def _kernels_of(self, node: Node) -> Iterator[Kernel]:
        """Yields a node's kernels, without those of an input's gradient that is not needed."""
        graph, w = self.graph, self._width
        needs = any(graph.edges[e].requires_grad for e in node.inputs)
        kernels = chain(KERNELS.get(node.kind, moving)(graph, node, w), sums(graph, node, w))
        if self.sheet.flash and node.kind == "SelfAttention":
            kernels = chain(flash_attention(graph, node, w))
        yield from (k for k in kernels if needs or k.column != I)
        if graph.outputs[0] in node.outputs:
            yield from loss(graph, node, w)


def model_times(graph: Graph, machine: Machine, dtype: str) -> ModelTimes:
    """Returns the seconds of a model's units: by the roofline model on a described machine,
    otherwise as measured, or estimated from multiplications."""
    if machine.sheet is not None:
        return RooflineTimes(graph, machine, dtype, machine.sheet)
    return ModelTimes(graph, machine, dtype)


def with_launches(device: np.ndarray, host: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Returns the seconds of nodes, shape (nodes, 3), with those added in which the device waits
    until the `host` has launched the kernels of a block, in the forward and in the backward pass.
    `blocks` has the number of each node's block."""
    seconds = device.copy()
    for half in (slice(F, I), slice(I, None)):
        busy, launching = (np.bincount(blocks, x[:, half].sum(axis=1)) for x in (device, host))
        waiting = np.maximum(1 - busy / np.maximum(launching, TINY), 0.0)
        seconds[:, half] += waiting[blocks][:, None] * host[:, half]
    return seconds


# ---- outputs of products


def weight_parts(sharding: Sharding, node: Node) -> tuple[float, float]:
    """Returns the largest shares of a weight's outputs and inputs that a rank along tp has."""
    cuts = (sharding.variables[v] for v in node.variables if v in sharding.variables)
    cut = next((cut for cut in cuts if cut.bounds), None)
    if cut is None:
        return 1.0, 1.0
    part = max(b - a for a, b in pairwise(cut.bounds)) / cut.bounds[-1]
    return (part, 1.0) if cut.axis == 0 else (1.0, part)


def in_tiles(
    outputs: np.ndarray, parts: np.ndarray, weights: np.ndarray, samples: int, sheet: Sheet
) -> np.ndarray:
    """Returns a factor for each kernel, at least 1, by which its operations grow because outputs
    are computed in whole tiles, several at once. `parts` are a rank's shares in each kernel's work,
    `weights` those of the two axes of its weight."""
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
    """Yields one product each in F, I and W; w is the number of bytes of an element."""
    weights = w * sum(graph.variables[v].size for v in node.variables)
    moved = w * (_made(graph, node) + sum(graph.edges[e].elements for e in node.inputs))
    shape = max((graph.variables[v].shape for v in node.variables), key=prod)
    rows = work(graph, node) / prod(shape), ROWS
    outs, ins = (float(shape[0]), OUTPUTS), (float(prod(shape[1:])), INPUTS)
    for column, sides in enumerate(((rows, outs), (rows, ins), (ins, outs))):
        yield Kernel(column, 2.0 * work(graph, node), moved, weights, Product(*sides))


def attention(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields the kernels of an attention layer: scores, softmax, and the product with values, over
    all pairs of positions, since masks save no work."""
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
    """Yields the two kernels of flash attention: forward, and backward, which computes the scores
    again. They reach only the share FLASH of the rate of matrix products, because exponentials come
    between the products."""
    ends = _made(graph, node) + sum(graph.edges[e].elements for e in node.inputs)
    operations = 2.0 * work(graph, node) / FLASH
    yield Kernel(F, operations, w * ends)
    yield Kernel(I, 2.5 * operations, 2 * w * ends)


def moving(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields the kernels of a layer or op whose time is that of memory traffic, with the bytes that
    the table MOVED gives for its kind. Other kinds read their inputs and write their outputs, and
    move 1.5 times that in the backward pass; if they have a weight, they are matrix products."""
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
    """Yields the kernels of the loss: a softmax in float32 and its gradient, op by op."""
    made = _made(graph, node)
    yield from (Kernel(F, 0, (w + 36) * made), Kernel(I, 0, (w + 12) * made))


def sums(graph: Graph, node: Node, w: int) -> Iterator[Kernel]:
    """Yields the kernel that adds a gradient to that of earlier micro-batches."""
    trained = sum(prod(v.shape) for v in map(graph.variables.__getitem__, node.variables)
                  if v.is_trained)  # fmt: skip
    if trained and node.kind != "Embedding":
        yield Kernel(W, 0, 0, 3 * w * trained)


KERNELS = {"Linear": products, "SelfAttention": attention}
"""By kind of node, the function that yields its kernels; `moving` does so for other kinds."""

MOVED = {
    **dict.fromkeys(("LayerNorm", "RMSNorm"), (2, 3, 2)),
    "add": (3, 3, 0),
    "Embedding": (2, 0, 3),
    "PositionalEmbedding": (2, 0, 3),
    **dict.fromkeys(("ChannelsFirst", "Flatten"), (0, 0, 0)),
}
"""By kind of node, the bytes that F, I and W move, in multiples of its output's."""
