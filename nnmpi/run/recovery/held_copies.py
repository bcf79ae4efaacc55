"""HeldCopy: which parts of which versions of the model a rank has, without the arrays; a search for
the newest version that is whole."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from nnmpi.nn import Module
from nnmpi.nn.place import Place, Range
from nnmpi.parallel.backup import HeldVersion
from nnmpi.parallel.model.moves import MovedTensor
from nnmpi.parallel.model.nearest import plan_moves
from nnmpi.parallel.model.parts import memory_axes
from nnmpi.run.run_state import VersionFacts
from nnmpi.run.session import Session

VersionKey: TypeAlias = tuple[int, int, int]


class HeldCopy(NamedTuple):
    """The part of one version of the model that a rank has, without its arrays.

    version   the number of steps after which values are as in this copy
    session   the number of the session that the copy is from
    tensors   of the whole model
    ranges    of these tensors that this rank has
    facts     everything else about that version
    renewal   how often the backup of that version was made again, because values were written
    """

    version: int
    session: int
    tensors: tuple[MovedTensor, ...]
    ranges: tuple[Range, ...]
    facts: VersionFacts
    renewal: int = 0

    @property
    def key(self) -> VersionKey:
        """The version, the session and the renewal; copies with one key are parts of the same
        model."""
        return self.version, self.session, self.renewal


def tensors_of(model: Module) -> tuple[MovedTensor, ...]:
    """Each parameter and buffer of a whole model once, under its first name."""
    first = {id(tensor): (place, tensor) for place, tensor in reversed([*model.tensors()])}
    return tuple(
        MovedTensor(place.path, place.shape, memory_axes(tensor), ())
        for place, tensor in first.values()
    )


def progress(held_copy: HeldCopy) -> tuple[int, bool, bool]:
    """A sort key: copies of the newest run come first, of these the ones with the least progress;
    the end of an epoch clears its sums."""
    counters = held_copy.facts.counters
    is_followed = counters.last is None and counters.state.step == held_copy.version
    return -counters.runs, is_followed, counters.sums.samples == 0


def newest(held_copies: Iterable[HeldCopy]) -> tuple[HeldCopy | None, str]:
    """The newest copy that is whole when the copies of all ranks are put together, the one with the
    least progress if there are several; or None, and what the newest version lacks."""
    known, missing = [*held_copies], ""
    for key in sorted({held_copy.key for held_copy in known}, reverse=True):
        of_key = [held_copy for held_copy in known if held_copy.key == key]
        try:
            _check(of_key)
        except ValueError as error:
            missing = missing or str(error)
        else:
            return min(of_key, key=progress), ""
    return None, missing


def _check(held_copies: Sequence[HeldCopy]) -> None:
    """Raises ValueError unless these copies together contain each element of the model at least
    once."""
    tensors = held_copies[0].tensors
    have = [(0, item) for held_copy in held_copies for item in held_copy.ranges]
    need = [(0, Place.of_whole(item.path, item.shape).range()) for item in tensors]
    plan_moves(tensors, have, need, [0])


class RangeTransfer(NamedTuple):
    """Ranges that a spare rank sends to a working rank."""

    source: int
    to: int
    ranges: frozenset[Range]


def spare_transfers(
    held_copies: Sequence[Sequence[HeldCopy]], source: HeldCopy, working: int
) -> list[RangeTransfer]:
    """The transfers that spare ranks, the last ones, make: ranges of `source` that no working rank
    has."""
    owned = [
        frozenset(
            held
            for held_copy in of_rank
            if held_copy.key == source.key
            for held in held_copy.ranges
        )
        for of_rank in held_copies
    ]
    known, transfers = frozenset[Range]().union(*owned[:working]), []
    for rank, held in enumerate(owned[working:], working):
        if new := held - known:
            transfers.append(RangeTransfer(rank, rank % working, new))
            known |= new
    return transfers


def versions(session: Session, copies: bool = False) -> Iterator[HeldVersion]:
    """The versions of the model that this rank has parts of: the current one, backups, and the one
    at the start of the epoch. With `copies=False` the current one is in the arrays that the next
    step changes."""
    start, last = session.epoch_start, session.strategy.last
    # otherwise an epoch with servers is under way, and some values are of later steps
    if start is None or start.version < session.run.state.step:
        facts = session.version_facts()
        version = max(facts.counters.state.step, last.version if last else 0)
        renewal = session.backups.renewal_of(version) if session.backups else 0
        yield HeldVersion(version, session.snapshot(copies).owned, facts, renewal)
    if session.backups is not None:
        yield from session.backups.held()
    if start is not None:
        yield start
