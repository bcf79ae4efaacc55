"""Arrangement: an immutable value that says which part of a model each rank has and what it does.

    options ─┐
    cluster ─┼─► arrange ─► Arrangement ─┬─► simulated step     bytes, messages, memory
    graph ───┘                           ├─► drawing            who holds what
                                         └─► build              stores, Comms, lists

Ranks that differ along axes of replicas only, such as dp, have the same part of the model.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import dtypes
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
from nnmpi.parallel.mesh import CUT_BY_AXIS, Mesh
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding
from nnmpi.parallel.tensor.ways import SAMPLE_CUT
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import Kind, Op


def own_samples(samples: int, ranks: int, r: int) -> range:
    """Returns which samples rank r along tp computes in layers whose samples are divided."""
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
    **{axis: partial(_own_part, axis) for axis in CUT_BY_AXIS},
    "tp": _own_channels,
}
"""(sharding, e, r, shape): changes the shape of edge e to that on rank r."""


def _whole_buffer(a: "Arrangement", rank: int) -> Iterator[FlatSlice]:
    yield 0, a.model_on(rank).length


ExchangesOf: TypeAlias = "Callable[[Arrangement, int, Op], Iterable[Any]] | None"
"""(arrangement, rank, op): yields exchanges with their axes; None: none."""


class StoreKind(NamedTuple):
    """A way to keep parameters, gradients and optimizer state, such as replicated or ZeRO 3.

    make            (StoreSpec): the store, if an add-on has it and no strategy makes it
    updaters        (arrangement, rank, bucket): the ranks that share the update of the bucket; each
                    updates a part of it
    owned           (arrangement, rank): the slices of the flat buffer whose current values and
                    optimizer state can be read as long as this rank lives
    is_sharded      whether replicas own different slices
    has_all_values  whether each replica has the values of all parameters nevertheless
    zero            the value of --zero that selects this kind
    buckets         whether gradients are summed bucket by bucket
    scalars         whether the loss and other scalars are summed in front of the gradients
    scatters        whether each backward pass scatters gradients among the replicas
    packs           whether gradients are compressed for messages, so that neither shared memory nor
                    NCCL can sum them
    is_readable     whether one rank alone can read all of its parameters between steps
    exchanges       by kind of operation: the exchanges, where they are not those of sums of whole
                    gradients
    bytes_copied    (arrangement, rank): the bytes that array functions read and write in a step to
                    pack and unpack gradients
    """

    name: str
    make: Callable[[Any], Any] | None = None
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
    exchanges: Mapping[Kind, ExchangesOf] = {}
    bytes_copied: "Callable[[Arrangement, int], float]" = lambda a, rank: 0.0


class Averages(NamedTuple):
    """The exchanges of replicas that make steps alone and are averaged at times (as local SGD).

    every          (config): after how many steps replicas send their parameters
    delay          (config): how many steps later they use the received parameters
    copies         (arrangement): how many additional copies of its parameters a replica has
    bytes_copied   (arrangement, rank): the bytes that array functions read and write for exchanges
                   in a step, on average
    """

    every: Callable[[Config], int]
    delay: Callable[[Config], int]
    copies: "Callable[[Arrangement], int]"
    bytes_copied: "Callable[[Arrangement, int], float]"


class StrategyKind(NamedTuple):
    """A kind of training strategy, such as data parallelism, a pipeline or a parameter server.

    parts           (layout, spec): the StrategyParts, where an add-on has the strategy and all
                    ranks make each step together
    make            (layout, spec): the Strategy itself, if not from parts
    held            (layout, spec): the store and the optimizer of a rank alone, if not from parts
    store           the kind of store, if the strategy has a kind of its own
    steps_together  whether all ranks are between the same two steps at any time; else steps of
                    several batches, or of several ranks, overlap
    is_pipeline     whether ranks follow --schedule
    passes          (micro-batches): the forward and backward passes of a rank in order, if no
                    --schedule decides it
    lists           (arrangement, rank, micro-batches): the StepList of a rank if the strategy has
                    other operations than those of `step_list/step.py`
    micro_batches   (arrangement, rank, batch): the sizes of micro-batches, if the strategy cuts
                    batches in its own way
    recomputes      whether it runs forward passes again in the backward pass
    of_stages       whether a pass of a whole stage is always one operation; else passes are divided
                    where a gradient bucket begins, usually between layers
    chosen          what the strategy has decided for this model, as an object that only the
                    strategy reads
    kept            the most bytes of activations that may be in memory at a time, if the strategy
                    moves others to disk; else None
    one_thread      whether BLAS must use one thread, to add up in a fixed order
    exchanges       by kind of operation: the exchanges, where they are not those of replicas that
                    sum gradients and agree on each step
    shared_stats    (config): whether statistics of a batch are those of all its replicas
    result_steps    (config): how many steps one StepResult covers
    averages        the exchanges along dp, if replicas are averaged now and then
    serving         (config): how many ranks, the last ones, only serve others
    """

    name: str
    parts: Callable[[Any, Any], Any] | None = None
    make: Callable[[Any, Any], Any] | None = None
    held: Callable[[Any, Any], tuple[Any, Any]] | None = None
    store: StoreKind | None = None
    steps_together: bool = True
    is_pipeline: bool = False
    passes: Callable[[int], list[Op]] | None = None
    lists: "Callable[[Arrangement, int, int], StepList] | None" = None
    micro_batches: "Callable[[Arrangement, int, int], list[int]] | None" = None
    recomputes: bool = False
    of_stages: bool = False
    chosen: Any = None
    kept: float | None = None
    one_thread: bool = False
    exchanges: Mapping[Kind, ExchangesOf] = {}
    shared_stats: Callable[[Config], bool] = lambda config: True
    result_steps: Callable[[Config], int] = lambda config: 1
    averages: Averages | None = None
    serving: Callable[[Config], int] = lambda config: 0


@dataclass(frozen=True)
class Arrangement:
    """The part of the model and the work of each rank of a job, computed by `arrange`.

    sharding      how layers and activations are divided along tp and cp
    mesh          the grid of the ranks that compute
    servers       the number of parameter servers
    rank_models   a dict: coordinates (pp, tp) -> the parameters that a rank there has
    algorithm     the all-reduce of gradients
    progress      how each rank progresses messages during a backward pass: "poll" or "thread"
    measured      earlier measurements, as the log shows them
    cache         the results of functions decorated with `cached`
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
        return dtypes.on_paper(self.config.dtype)

    @property
    def updated_dtype(self) -> np.dtype[Any]:
        """The dtype of the values that the optimizer updates: float32 in mixed precision."""
        dtype: np.dtype[Any] = types_of(self.dtype).masters
        return dtype

    @property
    def is_mixed(self) -> bool:
        """True in mixed precision: parameters are 16-bit copies of float32 masters."""
        return types_of(self.dtype).is_mixed

    @property
    def sums_dtype(self) -> np.dtype[Any] | None:
        """The dtype of partial sums that ranks send; None: that of the terms."""
        return self.updated_dtype if self.config.reduce_dtype != self.config.dtype else None

    @property
    def summed_axes(self) -> tuple[str, ...]:
        """The axes along which ranks sum gradients in each step."""
        return summed_axes(self.config)

    @cached_property
    def stages(self) -> list[range]:
        """For each pipeline stage, in order, the range of its nodes in the graph of the model."""
        return [stage.nodes for stage in self.division.stages]

    @property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """The coordinates along pp of the ranks that share a tied parameter, by its path."""
        return tied(self)

    def model_on(self, rank: int) -> RankModel:
        """Returns the RankModel of a rank; a parameter server has that of the workers."""
        at = self.mesh.coordinates(min(rank, self.mesh.size - 1))
        return self.rank_models[at["pp"], at["tp"]]

    def runs(self, node: int, rank: int) -> bool:
        """Returns True if a rank computes this node of its stages: not if it is in a part, such as
        a parallel branch, of another rank along tp."""
        return self.sharding.owned.runs(node, self.mesh.coordinates(rank)["tp"])

    def own_positions(self, rank: int) -> np.ndarray | None:
        """Returns the positions of sequences that a rank has; None if it has all."""
        at = self.mesh.coordinates(min(rank, self.mesh.size - 1))
        return self.sharding.own_positions(at)

    def replicas(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks that sum gradients with `rank` in each step, `rank` included."""
        return self.mesh.group(rank, *self.summed_axes)

    # ---- who sums and updates a bucket

    def summed_over(self, rank: int, bucket: BucketSlice) -> tuple[int, ...]:
        """Returns the ranks over which a bucket's gradients are summed or scattered."""
        if bucket.tied == NOT_TIED or self.store.scatters:
            return self.replicas(rank)
        return self.across_stages(rank, bucket, *self.summed_axes, "pp")

    def across_stages(self, rank: int, bucket: BucketSlice, *axes: str) -> tuple[int, ...]:
        """Returns the ranks along `axes` of `rank` that have the parameter of a tied `bucket`."""
        stages = ranks_of_variables(self)[self.model_on(rank).trained[bucket.tied].variable]
        group = self.mesh.group(rank, *axes)
        return tuple(r for r in group if self.mesh.coordinates(r)["pp"] in stages)

    def near_replicas(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks on the node of `rank` that sum gradients with it, `rank` included."""
        return _replicas_on_node(self, self.replicas(rank)[0], self.cluster.nodes[rank])

    def owned_ranges(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yields (start, stop) of `rank`'s part in each bucket, which it updates."""
        for bucket in self.model_on(rank).buckets:
            ranks = self.store.updaters(self, rank, bucket)
            n, p, r = bucket.stop - bucket.start, len(ranks), ranks.index(rank)
            yield bucket.start + chunk_start(n, p, r), bucket.start + chunk_start(n, p, r + 1)

    # ---- activations

    def local_shape(self, e: int, samples: int, at: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of the activation at edge `e` on a rank with mesh coordinates `at`."""
        shape = list(self.graph.edges[e].shape(samples))
        for axis, localise in LOCAL_SHAPES.items():
            localise(self.sharding, e, at[axis], shape)
        return tuple(shape)

    def local_bytes(self, e: int, samples: int, at: Mapping[str, int]) -> int:
        """Returns the bytes of the activation at edge `e` on a rank with mesh coordinates `at`."""
        numbers = prod(self.local_shape(e, samples, at))
        return numbers * np.dtype(self.graph.edges[e].dtype).itemsize

    def sums_by(self, group: tuple[int, ...]) -> str:
        """Returns the all-reduce of activations in a group along tp: "shared" on hosts with enough
        shared memory, else "ring"."""
        lengths = 1 << 20  # bytes: with less free memory than that, a ring
        free = min(self.cluster.free_memory[r] for r in group)
        return "shared" if free > lengths and not self.cluster.has_devices else "ring"

    # ---- questions of a run

    @property
    def recomputes(self) -> bool:
        """True if some forward passes run again in the backward pass."""
        return self.config.recompute != "none" or self.strategy.recomputes

    @property
    def steps_together(self) -> bool:
        """True if all ranks are always at the same step, and batches do not overlap."""
        return self.strategy.steps_together


@cached
def _replicas_on_node(a: Arrangement, first: int, node: int) -> tuple[int, ...]:
    """Returns the ranks on a node that sum gradients with rank `first`."""
    return a.cluster.on_node(node, a.replicas(first))


@cached
def layers(a: Arrangement) -> Mapping[int, ShardedLayer]:
    """Returns the layers that are divided along tp or have parameters, by node."""
    return {layer.node: layer for layer in reversed(a.sharding.layers)}


@cached
def node_leaders(a: Arrangement, group: tuple[int, ...]) -> Mapping[int, int]:
    """Returns the first rank of `group` on each node of the cluster, by the number of the node."""
    nodes = np.fromiter(map(a.cluster.nodes.__getitem__, group), int)
    leaders = (group[i] for i in np.sort(np.unique(nodes, return_index=True)[1]))
    return {a.cluster.nodes[r]: r for r in leaders}


@cached
def tied(a: Arrangement) -> dict[str, tuple[int, ...]]:
    """Returns the coordinates along pp of the ranks that share a tied parameter, by its path."""
    return a.division.tied(a.graph)


@cached
def ranks_of_variables(a: Arrangement) -> Mapping[int, tuple[int, ...]]:
    """Returns the coordinates along pp of the ranks that have a variable, by its number."""
    return a.division.ranks()


def counting_flags(a: Arrangement, rank: int) -> list[bool]:
    """Returns which trained parameters a rank counts in a sum over the model: the first copy of
    each."""
    at = a.mesh.coordinates(min(rank, a.mesh.size - 1))
    owned, stages = a.sharding.owned, ranks_of_variables(a)

    def is_first(v: int) -> bool:
        owners = [t for t in range(a.mesh.axes["tp"]) if owned.has(v, t)]
        return at["pp"] == stages[v][0] and (v in a.sharding.variables or at["tp"] == owners[0])

    return [is_first(held.variable) for held in a.model_on(rank).trained]


def users_of(variables: Collection[HeldVariable]) -> frozenset[int]:
    """Returns the rank's stages that use any of `variables`."""
    return frozenset[int]().union(*(held.users for held in variables))
