"""Versions: copies of the training state after certain steps, of which each rank has a part. Finds
the newest one of which the remaining ranks together have all parts."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nnmpi.addons.recovery.parallel.backup import Version
from nnmpi.addons.recovery.run.run_counters import Counters
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.nn import Module
from nnmpi.nn.place import Range, StateArray
from nnmpi.optim.replica_state import unnumbered
from nnmpi.parallel.model.mover import Mover
from nnmpi.parallel.model.state import model_tensors, module_state


class VersionFacts(NamedTuple):
    """The facts about a version of the training state that are equal on all ranks: a snapshot
    without arrays, and the counters of the run."""

    head: Snapshot
    counters: Counters


def progress(version: Version) -> tuple[int, bool, bool]:
    """Returns a sort key for versions (copies of the training state after some step): versions of
    the newest call of `fit` come first, and among them the one with the least progress. The end of
    an epoch, which clears the epoch's sums, counts as progress."""
    counters = version.about.counters
    is_complete = counters.unfollowed is None and counters.state.step == version.version
    return -counters.fit_calls, is_complete, counters.sums.samples == 0


def whole_state(model: Module) -> tuple[StateArray, ...]:
    """Returns all parameters, buffers and other state of a model's modules, without data."""
    return (*model_tensors(model), *(x.as_whole() for _, x in module_state(model)))


def newest(
    versions: Iterable[Version], tensors: Sequence[StateArray]
) -> tuple[Version | None, str]:
    """Returns the newest version that the arrays of all ranks together complete, and ""; of several
    with different progress, the one with the least. Otherwise returns None, and what the newest one
    lacks. `tensors` describes the model's whole state."""
    known, missing = [*versions], ""
    for key in sorted({version.key for version in known}, reverse=True):
        of_key = [version for version in known if version.key == key]
        try:
            _check([x for version in of_key for x in version.arrays], tensors)
        except ValueError as error:
            missing = missing or str(error)
        else:
            return min(of_key, key=progress), ""
    return None, missing


def _check(arrays: Sequence[StateArray], tensors: Sequence[StateArray]) -> None:
    """Raises ValueError unless the arrays together have every element of `tensors` and of all other
    state of which they have a part. State that differs between replicas, such as residuals of
    compression, may be incomplete: each replica has its own, which is lost with it."""
    needed = {x.name: x for x in tensors}
    needed |= {x.name: x.as_whole() for x in arrays if unnumbered(x.name)[1] is None}
    Mover([(0, x) for x in arrays], [(0, x) for x in needed.values()], [0])


class RangeTransfer(NamedTuple):
    """The ranges of state arrays that a spare rank (`source`) sends to one that trains (`to`)."""

    source: int
    to: int
    ranges: frozenset[Range]


def spare_transfers(
    versions: Sequence[Sequence[Version]], source: Version, working: int
) -> list[RangeTransfer]:
    """Returns the transfers by which the first `working` ranks, which train, get the parts of
    `source` that only spare ranks have, given the versions that each rank holds."""
    owned = [
        frozenset(
            x.range for version in of_rank if version.key == source.key for x in version.arrays
        )
        for of_rank in versions
    ]
    known, transfers = frozenset[Range]().union(*owned[:working]), []
    for rank, held in enumerate(owned[working:], working):
        if new := held - known:
            transfers.append(RangeTransfer(rank, rank % working, new))
            known |= new
    return transfers
