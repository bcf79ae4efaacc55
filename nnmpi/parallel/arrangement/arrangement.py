"""Arrangement: what each rank has and does, as a value.

    options ─┐
    cluster ─┼─► arrange ─► Arrangement ─┬─► step on paper      bytes, messages, memory
    graph ───┘                           ├─► drawing            who holds what
                                         └─► build              stores, Comms, programs

Ranks that differ along dp and cp only have the same part of the model.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, Bucket, HeldVariable, RankModel
from nnmpi.parallel.arrangement.residence import Residences
from nnmpi.parallel.mesh import REPLICAS, Mesh
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding
from nnmpi.parallel.tensor.ways import OF_SAMPLES

MEASURED = "auto"
"""The algorithm where the fastest has to be measured first."""


def _own_positions(sharding: Sharding, e: int, r: int, shape: list[int]) -> None:
    positions = sharding.sequences
    if e in positions.axes:
        shape[positions.axes[e]] = positions.count(r)


def own_samples(samples: int, ranks: int, r: int) -> range:
    """The samples of a rank where ranks along tp compute some of a micro-batch each."""
    return range(chunk_start(samples, ranks, r), chunk_start(samples, ranks, r + 1))


def _own_channels(sharding: Sharding, e: int, r: int, shape: list[int]) -> None:
    state = sharding.edges.get(e)
    if state is OF_SAMPLES:
        shape[0] = len(own_samples(shape[0], sharding.ranks, r))
    elif state:
        axis = state.axis + 1 if state.axis >= 0 else len(shape) + state.axis
        shape[axis] = state.bounds[r + 1] - state.bounds[r]


LOCAL_SHAPES: Mapping[str, Callable[[Sharding, int, int, list[int]], None]] = {
    "cp": _own_positions,
    "tp": _own_channels,
}
"""The shape of edge e on rank r along an axis."""


class StrategyKind(NamedTuple):
    """A row of `STRATEGY_KINDS`; `plan.py` has what builds each.

    is_asked        whether the options ask for it, where they ask for none of the rows above
    steps_together  whether all ranks are between the same two steps at a time; else steps of
                    several batches, or of several ranks, overlap
    is_pipeline     whether each rank carries out its program of --schedule
    """

    name: str
    is_asked: Callable[[Config], bool]
    steps_together: bool = True
    is_pipeline: bool = False


def _all(a: "Arrangement", rank: int) -> Iterator[FlatSlice]:
    yield 0, a.model_on(rank).length


class StoreKind(NamedTuple):
    """A row of `STORE_KINDS`.

    updaters    the ranks that share the update of a bucket, each a part of it
    own         slices of the flat buffer whose optimizer state can be read as long as the rank is
                there; and with them values that are up to date
    divides     whether each replica has others of them; else all have the same
    copies      whether each replica has the values of all of them
    strategy    the strategy whose store it is, where there is one kind for it
    zero        the --zero that asks for it
    buckets     whether gradients are summed bucket by bucket
    scalars     whether scalars travel in front of the gradients
    scatters    whether each backward pass scatters gradients among the replicas
    is_whole    whether a rank alone can read the parameters between steps
    has_pages   whether values and optimizer state can be on disk but for those in use: all are in
                memory of the rank alone
    """

    name: str
    updaters: Callable[["Arrangement", int, Bucket], tuple[int, ...]] = lambda a, rank, _: (rank,)
    own: Callable[["Arrangement", int], Iterable[FlatSlice]] = _all
    divides: bool = False
    copies: bool = False
    strategy: str = ""
    zero: int = 0
    buckets: bool = True
    scalars: bool = True
    scatters: bool = False
    is_whole: bool = True
    has_pages: bool = False


@dataclass(frozen=True)
class Arrangement:
    """Made by `arrange`, and read by all that prices, draws or builds it.

    division    the stages of the model
    rank_models    what ranks have, by the coordinates along pp and tp
    store       where parameters and gradients of a rank are
    algorithm   the all-reduce of gradients
    progress    what moves messages in a backward pass, for each rank
    measured    what was measured before, as the log shows it
    residences  where activations of each stage are, if they are more than --memory leaves them;
                one rank then has all stages
    cache       results of `cached` functions
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
    residences: Residences | None = None
    cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def ranks(self) -> int:
        """All ranks of the job, servers included."""
        return self.mesh.size + self.servers

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of parameters, as layers see them, and of gradients."""
        return np.dtype(self.config.dtype)

    @property
    def updated_dtype(self) -> np.dtype[Any]:
        """The type of what the optimizer updates, and of its state."""
        dtype: np.dtype[Any] = types_of(self.dtype).masters
        return dtype

    @property
    def is_mixed(self) -> bool:
        """Whether masters are updated, of which parameters are the rounding."""
        return types_of(self.dtype).is_mixed

    @property
    def sums_dtype(self) -> np.dtype[Any] | None:
        """The type in which partial sums of gradients and activations travel, if not in theirs."""
        return self.updated_dtype if self.config.reduce_dtype != self.config.dtype else None

    @cached_property
    def stages(self) -> list[range]:
        """The nodes of each stage."""
        return [stage.nodes for stage in self.division.stages]

    @property
    def tied(self) -> dict[str, tuple[int, ...]]:
        """The paths of trained parameters of several stages, with their ranks along pp."""
        return tied(self)

    def model_on(self, rank: int) -> RankModel:
        """The part of the model that a rank has; servers have what workers have."""
        at = self.mesh.coordinates(min(rank, self.mesh.size - 1))
        return self.rank_models[at["pp"], at["tp"]]

    def runs(self, node: int, rank: int) -> bool:
        """Whether a rank of its stage computes a node."""
        return self.sharding.branches.runs(node, self.mesh.coordinates(rank)["tp"])

    def own_positions(self, rank: int) -> np.ndarray | None:
        """The positions of sequences that a rank has; None: all of them."""
        at = self.mesh.coordinates(min(rank, self.mesh.size - 1))
        return self.sharding.sequences.here(at["cp"])

    def replicas(self, rank: int) -> tuple[int, ...]:
        """The ranks that sum gradients with this one: those along dp and cp."""
        return self.mesh.group(rank, *REPLICAS)

    # ---- who sums and updates a bucket

    def summed_over(self, rank: int, bucket: Bucket) -> tuple[int, ...]:
        """The ranks that sum a bucket, or scatter its sum among them."""
        if bucket.tied == NOT_TIED or self.store.scatters:
            return self.replicas(rank)
        return self.across_stages(rank, bucket, *REPLICAS, "pp")

    def across_stages(self, rank: int, bucket: Bucket, *axes: str) -> tuple[int, ...]:
        """The ranks along these axes in the stages that have the tied parameter of a bucket."""
        stages = ranks_of_variables(self)[self.model_on(rank).trained[bucket.tied].variable]
        group = self.mesh.group(rank, *axes)
        return tuple(r for r in group if self.mesh.coordinates(r)["pp"] in stages)

    def near_replicas(self, rank: int) -> tuple[int, ...]:
        """The replicas on the node of a rank, itself included."""
        return _near(self, self.replicas(rank)[0], self.cluster.nodes[rank])

    def owned_ranges(self, rank: int) -> Iterator[tuple[int, int]]:
        """The ranges of its flat buffer that a rank updates: (start, stop) in each bucket."""
        for bucket in self.model_on(rank).buckets:
            ranks = self.store.updaters(self, rank, bucket)
            n, p, r = bucket.stop - bucket.start, len(ranks), ranks.index(rank)
            yield bucket.start + chunk_start(n, p, r), bucket.start + chunk_start(n, p, r + 1)

    # ---- activations

    def local_shape(self, e: int, samples: int, at: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an edge on a rank with these coordinates, for so many samples."""
        shape = list(self.graph.edges[e].shape(samples))
        for axis, localise in LOCAL_SHAPES.items():
            localise(self.sharding, e, at[axis], shape)
        return tuple(shape)

    def local_bytes(self, e: int, samples: int, at: Mapping[str, int]) -> int:
        """The bytes of an edge on a rank with these coordinates, for so many samples."""
        numbers = prod(self.local_shape(e, samples, at))
        return numbers * np.dtype(self.graph.edges[e].dtype).itemsize

    def sums_by(self, group: tuple[int, ...]) -> str:
        """How ranks along tp sum long activations."""
        lengths = 1 << 20  # bytes: where a node has not even that, a ring does it
        free = min(self.cluster.free_memory[r] for r in group)
        return "shared" if free > lengths and not self.cluster.has_devices else "ring"

    # ---- questions of a run

    @property
    def has_to_be_measured(self) -> bool:
        """Whether the all-reduce is to be the fastest, and it is not known which one that is."""
        return self.algorithm == MEASURED and self.store.buckets

    @property
    def longest_sum(self) -> int:
        """The bytes of the largest bucket of any rank."""
        buckets = (bucket for held in self.rank_models.values() for bucket in held.buckets)
        return max(b.stop - b.start for b in buckets) * self.dtype.itemsize

    @property
    def recomputes(self) -> bool:
        """Whether forward passes run again for backward passes."""
        by_memory = self.residences is not None and self.residences.recomputes
        return self.config.recompute or by_memory

    @property
    def steps_together(self) -> bool:
        """Whether all ranks are between the same two steps at a time."""
        return self.strategy.steps_together


@cached
def _near(a: Arrangement, first: int, node: int) -> tuple[int, ...]:
    """The replicas of a rank that are on a node."""
    return a.cluster.on_node(node, a.replicas(first))


@cached
def layers(a: Arrangement) -> Mapping[int, ShardedLayer]:
    """The layer at each node that is divided or has parameters: of several, the first."""
    return {layer.node: layer for layer in reversed(a.sharding.layers)}


@cached
def firsts(a: Arrangement, group: tuple[int, ...]) -> Mapping[int, int]:
    """The first of these ranks on each node, by its node."""
    nodes = np.fromiter(map(a.cluster.nodes.__getitem__, group), int)
    first_ranks = (group[i] for i in np.sort(np.unique(nodes, return_index=True)[1]))
    return {a.cluster.nodes[r]: r for r in first_ranks}


@cached
def tied(a: Arrangement) -> dict[str, tuple[int, ...]]:
    """The paths of trained parameters of several stages, with their ranks along pp."""
    return a.division.tied(a.graph)


@cached
def ranks_of_variables(a: Arrangement) -> Mapping[int, tuple[int, ...]]:
    """The ranks along pp that have each variable."""
    return a.division.ranks()


def counted(a: Arrangement, rank: int) -> list[bool]:
    """A flag for each trained parameter of a rank: whether the rank counts it in a sum over the
    model, which the first of the ranks that have the same part does."""
    at = a.mesh.coordinates(min(rank, a.mesh.size - 1))
    branches, stages = a.sharding.branches, ranks_of_variables(a)

    def is_first(v: int) -> bool:
        owners = [t for t in range(a.mesh.axes["tp"]) if branches.has(v, t)]
        return at["pp"] == stages[v][0] and (v in a.sharding.variables or at["tp"] == owners[0])

    return [is_first(held.variable) for held in a.model_on(rank).trained]


def users_of(variables: Collection[HeldVariable]) -> frozenset[int]:
    """The stages of the rank that use any of these."""
    return frozenset[int]().union(*(held.users for held in variables))
