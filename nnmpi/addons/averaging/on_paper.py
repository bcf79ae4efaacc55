"""States what data-parallel replicas that are averaged exchange in a step, and hold for it: the
exchanges of a round of steps, each with the number of steps of which one has it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np

from nnmpi.addons.averaging.fragments import fragments
from nnmpi.addons.compression.blocks import PACKINGS, summed
from nnmpi.addons.compression.compressed import BLOCK
from nnmpi.addons.compression.on_paper import NotingWire, PackedSum, packed_sum
from nnmpi.arrays.backend import META
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.gossip import GRAPHS
from nnmpi.nn.store import shards_of, within
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, Averages
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import (
    FLOAT64,
    SCALARS,
    AxisExchange,
    Exchange,
    new_exchange,
)
from nnmpi.parallel.wire import Wire
from nnmpi.schedules.op import Kind, Op

AGREED = 3
"""The numbers on which replicas agree at the end of a round: loss, request, skipped updates."""


def exchanges(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    """Yields the exchanges of replicas after a step, during its update."""
    group, every = a.mesh.group(rank, "dp"), a.config.every
    if len(group) == 1:
        return
    about = partial(new_exchange, a, during=op.kind)
    made = [about("scalars", Collective.ALL_REDUCE, SCALARS, group, AGREED, FLOAT64)]
    if a.config.sync == "gossip":
        n, dtype = sum(_pieces(a, rank)), a.updated_dtype
        yield "dp", about("parameters", Collective.NEIGHBOURS, a.config.graph, group, n, dtype)
        made.append(about("parameters", Collective.ALL_REDUCE, a.algorithm, group, n, dtype))
    else:
        made += (e for i in range(a.config.fragments) for e in _of_fragment(a, rank, i))
    yield from (("dp", exchange._replace(every=every)) for exchange in made)


def _of_fragment(a: Arrangement, rank: int, i: int) -> Sequence[Exchange]:
    """Returns the exchanges by which replicas average fragment number i."""
    form, n = a.config.outer_dtype, _length(a, rank, i)
    if not n:
        return ()
    if form in PACKINGS:
        phases = _packed_mean(a, rank, n).phases
        noted = (exchange for phase in phases for exchange in phase)
        return [exchange._replace(what="parameters", during=Kind.APPLY) for exchange in noted]
    dtype = np.dtype(form or a.updated_dtype)
    how = Collective.ALL_REDUCE, a.algorithm, a.mesh.group(rank, "dp"), n, dtype
    return [new_exchange(a, "parameters", *how, Kind.APPLY)]


def _length(a: Arrangement, rank: int, i: int) -> int:
    """Returns the number of elements of fragment i that a rank updates, with room between them."""
    align = BLOCK if a.config.outer_dtype == "int8" else 1
    *others, last = _pieces(a, rank, i) or [0]
    return sum(-(-n // align) * align for n in others) + last


@cached
def _pieces(a: Arrangement, rank: int, i: int | None = None) -> list[int]:
    """Returns the lengths of what a rank updates, or of a fragment of it."""
    held, of = a.model_on(rank), _fragments(a)
    pairs = zip(held.trained, held.spans, strict=True)
    spans = [span for v, span in pairs if i in (None, of[a.graph.variables[v.variable].path])]
    shards = shards_of(a.owned_ranges(rank))
    pieces = (piece for start, stop in spans for piece in within(shards, start, stop))
    return [piece.stop - piece.start for piece in pieces]


@cached
def _fragments(a: Arrangement) -> Mapping[str, int]:
    return fragments(a.graph, a.config.fragments)


@cached
def _packed_mean(a: Arrangement, rank: int, n: int) -> PackedSum:
    """Returns the sum of n elements in messages of the type --outer-dtype."""
    wire = NotingWire(a, a.mesh.group(rank, "dp"), rank)
    row = META.xp.empty(n, a.updated_dtype)
    return packed_sum(summed(row, cast(Wire, wire), PACKINGS[a.config.outer_dtype]), wire)


def _every(config: Config) -> int:
    every: int = config.every
    return every if config.sync == "local" else 1


def _copies(a: Arrangement) -> int:
    """Returns how many copies of parameters exchanges need: sent, received, kept."""
    copies: int = 2 + (a.config.apply_after > 0)
    if a.config.sync == "gossip":
        copies += len(GRAPHS[a.config.graph](a.mesh.axes["dp"]).offsets)
    return copies


# ---- bytes of array functions

COPY, SUM = 2, 3
"""How many rows of values a function reads and writes that copies or scales one, and one that adds
two."""


def _bytes_copied(a: Arrangement, rank: int) -> float:
    """Returns the bytes that exchanges read and write in a mean step."""
    config, nbytes = a.config, a.updated_dtype.itemsize
    # values are rounded to those of 16 bits, too
    assigned = COPY + a.is_mixed * (1 + a.dtype.itemsize / nbytes)
    resumed, shown = COPY + SUM + assigned, COPY + SUM + COPY + assigned
    row = sum(_pieces(a, rank)) * nbytes
    if config.sync == "gossip":
        neighbours = len(GRAPHS[config.graph](a.mesh.axes["dp"]).offsets)
        of_step = COPY + neighbours * SUM + COPY + assigned
        of_round = row * (resumed + COPY + shown) + _of_mean(a, rank, row // nbytes)
        return float(row * of_step + of_round / config.every)
    has_own_values = config.fragments > 1 or config.apply_after > 0
    has_momentum = config.outer == "nesterov" and config.outer_momentum > 0
    rows = resumed + shown if has_own_values else COPY
    rows += COPY + SUM + COPY  # the change of values is sent
    rows += has_momentum * 2 * (COPY + SUM) + COPY + SUM + COPY + assigned  # and applied
    lengths = [n for i in range(config.fragments) if (n := _length(a, rank, i))]
    of_round = row * rows + sum(_of_mean(a, rank, n) for n in lengths)
    if config.apply_after:  # values when a fragment is sent; their change until it is applied
        of_round += row * COPY + sum(lengths) * nbytes * (COPY + SUM + SUM)
    return float(of_round / config.every)


def _of_mean(a: Arrangement, rank: int, n: int) -> float:
    """Returns the bytes that array functions read and write to average n elements."""
    form, nbytes = a.config.outer_dtype, a.updated_dtype.itemsize
    if a.mesh.axes["dp"] == 1:
        return 0
    if form in PACKINGS:
        return _packed_mean(a, rank, n).touched + 2 * COPY * n * nbytes
    sent = np.dtype(form or a.updated_dtype)
    casts = 2 * (sent.itemsize + nbytes) * (sent != a.updated_dtype)
    return n * (COPY * sent.itemsize + casts)


AVERAGES = Averages(_every, lambda config: config.apply_after, _copies, _bytes_copied)
