"""Arrangement: what each rank has and does, as a value.

    options ─┐
    cluster ─┼─► arrange ─► Arrangement ─┬─► step on paper      bytes, messages, memory
    graph ───┘                           ├─► drawing            who holds what
                                         └─► build              stores, Comms, programs

Ranks that differ along axes of replicas only, such as dp, have the same part of the model.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.dtypes import types_of
from nnmpi.collectives.step import chunk_start
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, BucketSlice, HeldVariable, RankModel
from nnmpi.parallel.layout import summed_axes
from nnmpi.parallel.mesh import CUTS, Mesh
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding
from nnmpi.parallel.tensor.ways import SAMPLE_CUT
from nnmpi.schedules.op import Op

MEASURED = "auto"
"""The name of the all-reduce where the fastest one has to be measured first."""


def own_samples(samples: int, ranks: int, r: int) -> range:
    """Returns the samples of a micro-batch that rank `r` of `ranks` along tp computes, in layers
    that are cut along samples."""
    return range(chunk_start(samples, ranks, r), chunk_start(samples, ranks, r + 1))


def _own_channels(sharding: Sharding, e: int, r: int, shape: list[int]) -> None:
    state = sharding.edges.get(e)
    if state is SAMPLE_CUT:
        shape[0] = len(own_samples(shape[0], sharding.ranks, r))
    elif state:
        axis = state.axis + 1 if state.axis >= 0 else len(shape) + state.axis
        shape[axis] = state.bounds[r + 1] - state.bounds[r]


def _own_part(axis: str, sharding: Sharding, e: int, r: int, shape: list[int]) -> None:
    if cut := sharding.positions.get(axis):
        cut.localise(e, r, shape)


LOCAL_SHAPES: Mapping[str, Callable[[Sharding, int, int, list[int]], None]] = {
    **{axis: partial(_own_part, axis) for axis in CUTS},
    "tp": _own_channels,
}
"""The function of each axis that turns `shape`, the shape of edge `e`, into the local shape on rank
`r` along that axis, in place."""


def _whole_buffer(a: "Arrangement", rank: int) -> Iterator[FlatSlice]:
    yield 0, a.model_on(rank).length


class StoreKind(NamedTuple):
    """A kind of store: where a rank keeps parameters, gradients and optimizer state; a row of
    `STORE_KINDS`, or a store of one strategy.

    where           what makes the store from a StoreSpec, as "module:name"; "" if its strategy does
    updaters        the ranks that share the update of a bucket; each updates a part of it
    owned           the slices of the flat buffer whose optimizer state, with current values, can be
                    read as long as this rank lives
    is_sharded      whether each replica owns different slices; else all own the same
    has_all_values  whether each replica has the values of all parameters, although slices are
                    sharded
    zero            the --zero that asks for it
    buckets         whether gradients are summed bucket by bucket
    scalars         whether scalars travel in front of the gradients
    scatters        whether each backward pass scatters gradients among the replicas
    packs           whether gradients are packed for messages, which neither memory of a node nor
                    NCCL can add up
    is_readable     whether one rank alone can read all of its parameters between steps
    """

    name: str
    where: str = ""
    updaters: Callable[["Arrangement", int, BucketSlice], tuple[int, ...]] = lambda a, rank, _: (
        rank,
    )
    owned: Callable[["Arrangement", int], Iterable[FlatSlice]] = _whole_buffer
    is_sharded: bool = False
    has_all_values: bool = False
    zero: int = 0
    buckets: bool = True
    scalars: bool = True
    scatters: bool = False
    packs: bool = False
    is_readable: bool = True


class Averages(NamedTuple):
    """The exchanges of replicas that make steps of their own, and are averaged.

    every   (config): in one of how many steps they send their parameters
    delay   (config): how many steps they make until they use what they have received
    copies  (arrangement): how many copies of its parameters a replica has besides
    priced  (arrangement, exchange, replicas): an exchange along dp of a log, as it is priced
    """

    every: Callable[[Config], int]
    delay: Callable[[Config], int]
    copies: "Callable[[Arrangement], int]"
    priced: "Callable[[Arrangement, Any, tuple[int, ...]], Any]"


class StrategyKind(NamedTuple):
    """A kind of training strategy: what builds it, and its properties.

    parts           (layout, spec), as "module:name": the StrategyParts of ranks that make every
                    step together
    make            the same for the Strategy of a rank, where it is not made from these
    rank_step       and for the StepRunner of a rank on paper
    store           the kind of its stores, if they are its own
    steps_together  whether all ranks are between the same two steps at any time; else steps of
                    several batches, or of several ranks, overlap
    is_pipeline     whether each rank runs its program of --schedule
    program         (arrangement, rank, micro-batches): the ops of a step, if it has its own
    micro_batches   (arrangement, rank, batch): their sizes, if it cuts batches in its own way
    recomputes      whether its program has forward passes that run again
    of_stages       whether each stage is one unit of lists, whatever its buckets
    extended        (ops, chain): the list of a step with operations of its own, if it has any
    walk            (step list): a function that takes one operation after the other, and returns
                    what is wrong with it as to those of its own, or ""
    chosen          what it has chosen for the model
    kept            the most bytes of activations in memory, if it has others elsewhere
    one_thread      whether BLAS must use one thread, since several add in another order
    result_steps    (config): how many steps a result of the strategy is about
    averages        what replicas along dp exchange, if they do not sum gradients in each step
    """

    name: str
    parts: str = ""
    make: str = ""
    rank_step: str = ""
    store: StoreKind | None = None
    steps_together: bool = True
    is_pipeline: bool = False
    program: "Callable[[Arrangement, int, int], list[Op]] | None" = None
    micro_batches: "Callable[[Arrangement, int, int], list[int]] | None" = None
    recomputes: bool = False
    of_stages: bool = False
    extended: Callable[[Iterable[Any], Any], Iterator[Any]] | None = None
    walk: Callable[[Any], Callable[[Any], str]] | None = None
    chosen: Any = None
    kept: float | None = None
    one_thread: bool = False
    result_steps: Callable[[Config], int] = lambda config: 1
    averages: Averages | None = None


@dataclass(frozen=True)
class Arrangement:
    """The part and the work of each rank of a job: made by `arrange`, and read by everything that
    prices, draws or builds it.

    division     the stages of the model
    rank_models  the RankModel of each (pp, tp)
    store        the kind of store for parameters and gradients
    algorithm    the all-reduce of gradients
    progress     how each rank progresses messages during a backward pass: "poll" or "thread"
    measured     earlier measurements, as the log shows them
    cache        results of `cached` functions
    """

    config: Config
    cluster: Cluster
    graph: Graph
    sharding: Sharding
    division: Division
    mesh: Mesh
    servers: int
    strategy: StrategyKind
    rank_models: Mapping[tuple[int, int], RankModel]
    store: StoreKind
    algorithm: str
    progress: tuple[str, ...]
    measured: Mapping[str, Any]
    cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def ranks(self) -> int:
        """The number of all ranks of the job, servers included."""
        return self.mesh.size + self.servers

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the parameters that layers use, and of gradients."""
        return np.dtype(self.config.dtype)

    @property
    def updated_dtype(self) -> np.dtype[Any]:
        """The dtype of the values that the optimizer updates, and of its state: that of masters in
        mixed precision."""
        dtype: np.dtype[Any] = types_of(self.dtype).masters
        return dtype

    @property
    def is_mixed(self) -> bool:
        """True in mixed precision: the optimizer updates masters, and parameters are masters
        rounded to 16 bits."""
        return types_of(self.dtype).is_mixed

    @property
    def sums_dtype(self) -> np.dtype[Any] | None:
        """The dtype in which partial sums of gradients and activations travel; None if it is their
        own."""
        return self.updated_dtype if self.config.reduce_dtype != self.config.dtype else None

    @property
    def summed_axes(self) -> tuple[str, ...]:
        """The axes along which ranks sum gradients in each step."""
        return summed_axes(self.config)

    @cached_property
    def stages(self) -> list[range]:
        """The range of graph nodes of each stage."""
        return [stage.nodes for stage in self.division.stages]

    @property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """The ranks along pp that share each tied parameter, by the path of the parameter."""
        return tied(self)

    def model_on(self, rank: int) -> RankModel:
        """Returns the part of the model that a rank has; a server has that of the workers."""
        at = self.mesh.coordinates(min(rank, self.mesh.size - 1))
        return self.rank_models[at["pp"], at["tp"]]

    def runs(self, node: int, rank: int) -> bool:
        """Returns True if a rank computes a node, given that the node is in one of its stages."""
        return self.sharding.owned.runs(node, self.mesh.coordinates(rank)["tp"])

    def own_positions(self, rank: int) -> np.ndarray | None:
        """Returns the positions of sequences that a rank has; None if it has all."""
        at = self.mesh.coordinates(min(rank, self.mesh.size - 1))
        return self.sharding.own_positions(at)

    def replicas(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks that sum gradients with `rank`, itself included."""
        return self.mesh.group(rank, *self.summed_axes)

    # ---- who sums and updates a bucket

    def summed_over(self, rank: int, bucket: BucketSlice) -> tuple[int, ...]:
        """Returns the ranks that sum a bucket, or scatter its sum among themselves."""
        if bucket.tied == NOT_TIED or self.store.scatters:
            return self.replicas(rank)
        return self.across_stages(rank, bucket, *self.summed_axes, "pp")

    def across_stages(self, rank: int, bucket: BucketSlice, *axes: str) -> tuple[int, ...]:
        """Returns the ranks along `axes` whose stages have the tied parameter of a bucket."""
        stages = ranks_of_variables(self)[self.model_on(rank).trained[bucket.tied].variable]
        group = self.mesh.group(rank, *axes)
        return tuple(r for r in group if self.mesh.coordinates(r)["pp"] in stages)

    def near_replicas(self, rank: int) -> tuple[int, ...]:
        """Returns the replicas on the node of `rank`, itself included."""
        return _replicas_on_node(self, self.replicas(rank)[0], self.cluster.nodes[rank])

    def owned_ranges(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yields the (start, stop) slice of each bucket that a rank updates."""
        for bucket in self.model_on(rank).buckets:
            ranks = self.store.updaters(self, rank, bucket)
            n, p, r = bucket.stop - bucket.start, len(ranks), ranks.index(rank)
            yield bucket.start + chunk_start(n, p, r), bucket.start + chunk_start(n, p, r + 1)

    # ---- activations

    def local_shape(self, e: int, samples: int, at: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of edge `e` on a rank with coordinates `at`, for `samples` samples."""
        shape = list(self.graph.edges[e].shape(samples))
        for axis, localise in LOCAL_SHAPES.items():
            localise(self.sharding, e, at[axis], shape)
        return tuple(shape)

    def local_bytes(self, e: int, samples: int, at: Mapping[str, int]) -> int:
        """Returns the bytes of edge `e` on a rank with coordinates `at`, for `samples` samples."""
        numbers = prod(self.local_shape(e, samples, at))
        return numbers * np.dtype(self.graph.edges[e].dtype).itemsize

    def sums_by(self, group: tuple[int, ...]) -> str:
        """Returns the name of the all-reduce for long activations among the ranks `group` along tp:
        shared memory if their node has enough of it, else a ring."""
        lengths = 1 << 20  # bytes: with less free memory than that, a ring
        free = min(self.cluster.free_memory[r] for r in group)
        return "shared" if free > lengths and not self.cluster.has_devices else "ring"

    # ---- questions of a run

    @property
    def has_to_be_measured(self) -> bool:
        """True if the fastest all-reduce is wanted and not known yet."""
        return self.algorithm == MEASURED and self.store.buckets

    @property
    def longest_sum(self) -> int:
        """The bytes of the largest bucket of any rank."""
        buckets = (bucket for held in self.rank_models.values() for bucket in held.buckets)
        return max(b.stop - b.start for b in buckets) * self.dtype.itemsize

    @property
    def recomputes(self) -> bool:
        """True if some forward passes run again for backward passes."""
        return self.config.recompute != "none" or self.strategy.recomputes

    @property
    def steps_together(self) -> bool:
        """True if all ranks are between the same two steps at any time."""
        return self.strategy.steps_together


@cached
def _replicas_on_node(a: Arrangement, first: int, node: int) -> tuple[int, ...]:
    """Returns the replicas of rank `first` that are on a node."""
    return a.cluster.on_node(node, a.replicas(first))


@cached
def layers(a: Arrangement) -> Mapping[int, ShardedLayer]:
    """Returns the ShardedLayer of each node that is divided or has parameters; of several, the
    first."""
    return {layer.node: layer for layer in reversed(a.sharding.layers)}


@cached
def node_leaders(a: Arrangement, group: tuple[int, ...]) -> Mapping[int, int]:
    """Returns the first rank of `group` on each node, by the number of the node."""
    nodes = np.fromiter(map(a.cluster.nodes.__getitem__, group), int)
    leaders = (group[i] for i in np.sort(np.unique(nodes, return_index=True)[1]))
    return {a.cluster.nodes[r]: r for r in leaders}


@cached
def tied(a: Arrangement) -> dict[str, tuple[int, ...]]:
    """Returns the ranks along pp that share each tied parameter, by the path of the parameter."""
    return a.division.tied(a.graph)


@cached
def ranks_of_variables(a: Arrangement) -> Mapping[int, tuple[int, ...]]:
    """Returns the ranks along pp that have each variable."""
    return a.division.ranks()


def counting_flags(a: Arrangement, rank: int) -> list[bool]:
    """Returns a flag for each trained parameter of a rank: True if this rank counts the parameter
    in a sum over the model, such as a norm. Of ranks that have the same part, the first one counts
    it."""
    at = a.mesh.coordinates(min(rank, a.mesh.size - 1))
    owned, stages = a.sharding.owned, ranks_of_variables(a)

    def is_first(v: int) -> bool:
        owners = [t for t in range(a.mesh.axes["tp"]) if owned.has(v, t)]
        return at["pp"] == stages[v][0] and (v in a.sharding.variables or at["tp"] == owners[0])

    return [is_first(held.variable) for held in a.model_on(rank).trained]


def users_of(variables: Collection[HeldVariable]) -> frozenset[int]:
    """Returns the stages of the rank that use any of these variables."""
    return frozenset[int]().union(*(held.users for held in variables))
