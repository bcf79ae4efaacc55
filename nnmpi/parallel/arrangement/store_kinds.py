"""STORE_KINDS: the ways to keep parameters, gradients and optimizer state (replicated, ZeRO, in
shared memory, ...), each with its properties. `parallel/replicas/` makes the stores."""

from functools import partial

from nnmpi.addons import Table
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind

MORE_STORE_KINDS: Table[StoreKind] = Table("store_kinds")
"""By an option: the kind of store of ranks that have the same parameters."""


def asked_kind(config: Config) -> StoreKind:
    """Returns the kind of store (such as ZeRO) for ranks with equal parameters."""
    if kind := MORE_STORE_KINDS.chosen(config):
        return kind
    return next(kind for kind in STORE_KINDS.values() if kind.zero == config.zero)


_zero = partial(
    StoreKind,
    updaters=Arrangement.summed_over,
    owned=Arrangement.owned_ranges,
    is_sharded=True,
    scalars=False,
    is_readable=False,
)

STORE_KINDS: dict[str, StoreKind] = {
    kind.name: kind
    for kind in (
        StoreKind("replica"),
        StoreKind("local"),
        StoreKind(
            "node",
            updaters=lambda a, rank, _: a.near_replicas(rank),
        ),
        _zero("zero 1", zero=1, has_all_values=True),
        _zero("zero 2", zero=2, scatters=True, has_all_values=True),
        _zero("zero 3", zero=3, scatters=True),
    )
}
"""All kinds of stores of this package, by name."""
