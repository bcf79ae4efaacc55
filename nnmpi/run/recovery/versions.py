"""The versions of the training state that ranks have; a search for the newest one that is whole."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.nn import Module
from nnmpi.nn.place import Range, StateArray
from nnmpi.optim.replica_state import unnumbered
from nnmpi.parallel.model.mover import Mover
from nnmpi.parallel.model.state import model_tensors, module_state
from nnmpi.parallel.recovery.backup import Version
from nnmpi.run.recovery.run_counters import Counters


class VersionFacts(NamedTuple):
    """The facts about a version of the model besides its arrays; equal on all ranks."""

    head: Snapshot
    counters: Counters


def progress(version: Version) -> tuple[int, bool, bool]:
    """A sort key: versions of the newest run come first, of these the ones with the least progress;
    the end of an epoch clears its sums."""
    counters = version.about.counters
    is_complete = counters.unfollowed is None and counters.state.step == version.version
    return -counters.fit_calls, is_complete, counters.sums.samples == 0


def whole_state(model: Module) -> tuple[StateArray, ...]:
    """The tensors of a model and the state of its modules, whole and on paper."""
    return (*model_tensors(model), *(x.as_whole() for _, x in module_state(model)))


def newest(
    versions: Iterable[Version], tensors: Sequence[StateArray]
) -> tuple[Version | None, str]:
    """The newest version that is whole when the arrays of all ranks are put together, the one with
    the least progress if there are several; or None, and what the newest one lacks.

    tensors   the parameters and buffers of the model, whole
    """
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
    """Raises ValueError unless these arrays contain each element of the tensors, and of what else
    they have parts of, at least once; what belongs to one replica may be lost."""
    needed = {x.name: x for x in tensors}
    needed |= {x.name: x.as_whole() for x in arrays if unnumbered(x.name)[1] is None}
    Mover([(0, x) for x in arrays], [(0, x) for x in needed.values()], [0])


class RangeTransfer(NamedTuple):
    """Ranges that a spare rank sends to a working rank."""

    source: int
    to: int
    ranges: frozenset[Range]


def spare_transfers(
    versions: Sequence[Sequence[Version]], source: Version, working: int
) -> list[RangeTransfer]:
    """The transfers that spare ranks, the last ones, make: ranges of `source` that no working rank
    has. `versions` are those of each rank."""
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
