"""Layout: the communicators of a rank, one for each group of ranks that works together.

5 ranks, 2 servers    rank 0 1 2 compute (dp 0 1 2), rank 3 4 serve
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from nnmpi.addons import Table
from nnmpi.arrays.dtypes import HALVES
from nnmpi.comm import Comm, comm_self
from nnmpi.options.amounts import plural
from nnmpi.options.config import Config
from nnmpi.parallel.mesh import AXES, BATCH, MODEL, REPLICAS, Mesh

STRATEGY_KINDS: Table[Any] = Table("strategy_kinds")
"""By a feature: the StrategyKind of runs that ask for it."""


class Layout(NamedTuple):
    """The mesh of ranks, and this rank's communicators, for whatever communicates.

    mesh           the grid of the ranks that compute
    servers        the number of parameter servers, the last ranks of the job
    all            the Comm of the whole job
    axis           a dict: axis of the mesh -> the Comm of the ranks that differ along it only
    batch          the ranks that share a batch: along dp
    replicas       those that have the same parameters and sum gradients in each step: along dp and
                   cp, or along cp if replicas along dp are averaged
    model          those that hold one copy of the model together: all other axes
    server_group   on a parameter server, all servers
    narrow_sums    True if sums of 16-bit floats are rounded to 16 bits after each addition (in
                   shared memory, once for each node), and not added up in float32
    """

    mesh: Mesh
    servers: int
    all: Comm
    axis: Mapping[str, Comm]
    batch: Comm
    replicas: Comm
    model: Comm
    server_group: Comm
    narrow_sums: bool

    @classmethod
    def of(cls, config: Config, comm: Comm) -> Self:
        """Returns the Layout for a config's axes; every rank calls it."""
        narrow, summed = config.reduce_dtype in HALVES, summed_axes(config)
        return cls.on(mesh_of(config, comm.size), comm, server_count(config), narrow, summed)

    @classmethod
    def on(
        cls,
        mesh: Mesh,
        comm: Comm,
        servers: int = 0,
        narrow_sums: bool = False,
        summed: Sequence[str] = REPLICAS,
    ) -> Self:
        """Returns the Layout for a mesh, summing gradients along `summed`; all ranks call it."""

        def group(*axes: str) -> Comm:
            return _group(mesh, comm, axes, narrow_sums)

        axis = {row.name: group(row.name) for row in AXES}
        batch, replicas = (  # dp's Comm is reused if the group is the same
            axis["dp"] if "dp" in axes and mesh.count(*axes) == mesh.count("dp") else group(*axes)
            for axes in (BATCH, summed)
        )
        model = group(*MODEL)
        # a split is collective: workers call it too
        among = comm.split(0 if comm.rank >= mesh.size else None) if servers > 1 else None
        groups = axis, batch, replicas, model, among or comm_self()
        return cls(mesh, servers, comm, *groups, narrow_sums)

    @classmethod
    def of_one_rank(cls) -> Self:
        """Returns the layout of a job with one rank, this one; other ranks are ignored."""
        return cls.of(Config(), comm_self())

    @property
    def workers(self) -> int:
        """The number of ranks that compute; these are the first ranks of the job."""
        return self.mesh.size

    @property
    def serves(self) -> bool:
        """True if this rank is a parameter server, which computes nothing."""
        return self.all.rank >= self.workers

    @property
    def counts_loss(self) -> bool:
        """True if this rank's loss counts."""
        return counts_loss(self.mesh.coordinates(self.all.rank))

    def free(self) -> None:
        """Frees the communicators that were split off; every rank calls it. A group of one rank is
        `comm_self()` and is kept, so a single rank can still evaluate a model afterwards."""
        groups = *self.axis.values(), self.batch, self.replicas, self.model, self.server_group
        for group in dict.fromkeys(groups):
            if group.size > 1:
                group.free()


def counts_loss(at: Mapping[str, int]) -> bool:
    """True if the loss of the rank at these coordinates counts: the first along tp, since all have
    the same."""
    return not any(at[axis.name] for axis in AXES if axis.same_loss)


def mesh_of(config: Config, ranks: int) -> Mesh:
    """Returns the mesh of the ranks that are no parameter servers; raises ValueError if none is
    left, or the axes do not fit."""
    servers = server_count(config)
    if ranks <= servers:
        raise _without_workers(config.sync, servers, ranks)
    sizes = {axis.name: getattr(config, axis.name) for axis in AXES}
    return Mesh.filled(ranks - servers, sizes, config.order)


def _without_workers(sync: str, servers: int, ranks: int) -> ValueError:
    """Returns the ValueError for so many parameter servers that no rank is left to compute."""
    return ValueError(
        f"sync {sync} with {plural(servers, 'server')} needs at least {servers + 1} ranks, got "
        f"{ranks}: start it with mpirun -n {servers + 1} or more (in a simulation --ranks "
        f"{servers + 1}), or leave them out by --sync bsp --servers 0"
    )


def duplicate(comm: Comm) -> Comm:
    """Returns a Comm of the same ranks, whose messages cannot match those of `comm`; every rank
    calls it."""
    copy = comm.split(0)
    assert copy is not None
    return copy


def server_count(config: Config) -> int:
    """Returns how many ranks, the last ones, are parameter servers."""
    kind = STRATEGY_KINDS.chosen(config)
    return int(kind.serving(config)) if kind else 0


def summed_axes(config: Config) -> tuple[str, ...]:
    """Returns the axes along which ranks have equal parameters in each step, and sum gradients;
    without dp if its replicas are averaged now and then (local SGD), since they differ in
    between."""
    kind = STRATEGY_KINDS.chosen(config)
    is_averaged = kind is not None and kind.averages is not None
    return tuple(axis for axis in REPLICAS if axis != "dp" or not is_averaged)


def _group(mesh: Mesh, comm: Comm, axes: Sequence[str], narrow_sums: bool) -> Comm:
    """Returns the Comm of the ranks that differ from this one along these axes only; on a parameter
    server, a Comm of itself alone."""
    if mesh.count(*axes) == 1:
        return comm_self()
    # the first rank of a group is its color
    color = mesh.group(comm.rank, *axes)[0] if comm.rank < mesh.size else None
    return comm.split(color, narrow_sums=narrow_sums) or comm_self()
