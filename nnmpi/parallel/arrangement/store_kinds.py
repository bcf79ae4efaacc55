"""STORE_KINDS: the properties of each kind of store; its memory and traffic come from a step on
paper."""

from collections.abc import Iterator
from functools import partial

from nnmpi.collectives.step import chunk_start
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind
from nnmpi.parallel.arrangement.flat_buffer import FlatSlice


def asked_kind(config: Config) -> StoreKind:
    """Returns the kind of store that --zero asks for, where several ranks have the same
    parameters."""
    return next(kind for kind in STORE_KINDS.values() if kind.zero == config.zero)


def _slice_of_server(a: Arrangement, rank: int) -> Iterator[FlatSlice]:
    """Yields the slice of the flat buffer that a server updates; nothing for a worker, whose copy
    is older."""
    n, k = a.model_on(rank).length, rank - a.mesh.size
    if k >= 0:
        yield chunk_start(n, a.servers, k), chunk_start(n, a.servers, k + 1)


_zero = partial(
    StoreKind,
    updaters=Arrangement.summed_over,
    owned=Arrangement.owned_ranges,
    is_sharded=True,
    scalars=False,
    is_readable=False,
)
_of_strategy = partial(StoreKind, buckets=False)

STORE_KINDS: dict[str, StoreKind] = {
    kind.name: kind
    for kind in (
        StoreKind("replica", has_pages=True),
        StoreKind("local", has_pages=True),
        StoreKind("node", updaters=lambda a, rank, _: a.near_replicas(rank)),
        StoreKind("compressed", scalars=False),
        _zero("zero 1", zero=1, has_all_values=True),
        _zero("zero 2", zero=2, scatters=True, has_all_values=True),
        _zero("zero 3", zero=3, scatters=True),
        _of_strategy("versions", strategy="pipedream", scalars=False),
        _of_strategy("slices", strategy="reproducible"),
        _of_strategy(
            "served",
            strategy="server",
            owned=_slice_of_server,
            is_sharded=True,
            scalars=False,
            is_readable=False,
        ),
    )
}
"""The kinds of stores by name."""
