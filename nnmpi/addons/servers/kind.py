"""KIND: the strategy of runs with parameter servers, made from what a rank is."""

from collections.abc import Iterator

from nnmpi.addons.servers.client import ServerClient
from nnmpi.addons.servers.options import note_of_fitted, server_count, with_fewer
from nnmpi.addons.servers.server import ParameterServer
from nnmpi.addons.servers.strategy import served, steps_ahead
from nnmpi.collectives.step import chunk_start
from nnmpi.optim import Optimizer
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind, StrategyKind
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.fitting import Fitting
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import Strategy, TrainSpec
from nnmpi.schedules.op import Kind


def _slice_of_server(a: Arrangement, rank: int) -> Iterator[FlatSlice]:
    """Yields the slice of the flat buffer that rank `rank` updates if it is a parameter server;
    nothing for a worker, whose parameters are an older copy."""
    n, k = a.model_on(rank).length, rank - a.mesh.size
    if k >= 0:
        yield chunk_start(n, a.servers, k), chunk_start(n, a.servers, k + 1)


def make(layout: Layout, spec: TrainSpec) -> Strategy:
    """Returns the strategy of this rank: a ParameterServer, or a ServerClient on a worker, which
    computes gradients. Every rank calls it."""
    return ParameterServer(layout, spec) if layout.serves else ServerClient(layout, spec)


def held(layout: Layout, spec: TrainSpec) -> tuple[LocalStore, Optimizer]:
    """Returns the store and the optimizer of a worker or of a parameter server."""
    store, _ = served(layout, spec)
    return store, spec.optimizer(store.parameters)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError if dp does not equal the number of workers."""
    servers = server_count(config)
    if 0 < servers < ranks and config.dp not in (None, ranks - servers):
        raise ValueError(
            f"dp {config.dp} does not fit {ranks} ranks, {servers} of them servers: "
            f"start it with mpirun -n {config.dp + servers}, or leave dp out"
        )


KIND = StrategyKind(
    "server",
    make=make,
    held=held,
    store=StoreKind(
        "served",
        owned=_slice_of_server,
        is_sharded=True,
        buckets=False,
        scalars=False,
        is_readable=False,
    ),
    steps_together=False,
    # servers answer in the order in which requests arrive: no list has them
    exchanges=dict.fromkeys((Kind.SUM, Kind.AGREE)),
    shared_stats=lambda config: steps_ahead(config) == 0,
    serving=server_count,
)


CHECKS = Checks(ranks=check)


FITTING = Fitting(fewer=with_fewer, note=note_of_fitted)
