"""HeldCopy: what a rank has of a model after some steps, without the numbers; who lacks what."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nnmpi.nn import Module
from nnmpi.nn.place import Place, Range
from nnmpi.parallel.backup import HeldVersion
from nnmpi.parallel.model.moves import MovedTensor
from nnmpi.parallel.model.nearest import plan_moves
from nnmpi.parallel.model.parts import memory_axes
from nnmpi.run.run_state import VersionFacts
from nnmpi.run.session import Session


class HeldCopy(NamedTuple):
    """The part of the model that a rank has after so many steps.

    version   the number of these steps
    session   the number of the session that it is from
    tensors   of the whole model
    ranges    that this rank has
    facts     what else is to be known of that version
    """

    version: int
    session: int
    tensors: tuple[MovedTensor, ...]
    ranges: tuple[Range, ...]
    facts: VersionFacts

    @property
    def key(self) -> tuple[int, int]:
        """Holdings with one key belong together."""
        return self.version, self.session


def tensors_of(model: Module) -> tuple[MovedTensor, ...]:
    """Each parameter and buffer of a whole model once, under its first name."""
    first = {id(tensor): (place, tensor) for place, tensor in reversed([*model.tensors()])}
    return tuple(
        MovedTensor(place.path, place.shape, memory_axes(tensor), ())
        for place, tensor in first.values()
    )


def progress(held_copy: HeldCopy) -> tuple[int, bool, bool]:
    """How far its run is, of those that have begun it: the end of an epoch clears its sums."""
    counters = held_copy.facts.counters
    is_followed = counters.last is None and counters.state.step == held_copy.version
    return -counters.runs, is_followed, counters.sums.samples == 0


def newest(held_copies: Iterable[HeldCopy]) -> tuple[HeldCopy | None, str]:
    """The one with the least progress of the newest that have everything together, or what those
    of the newest version lack."""
    known, lacks = [*held_copies], ""
    for key in sorted({held_copy.key for held_copy in known}, reverse=True):
        of_key = [held_copy for held_copy in known if held_copy.key == key]
        try:
            _check(of_key)
        except ValueError as error:
            lacks = lacks or str(error)
        else:
            return min(of_key, key=progress), ""
    return None, lacks


def _check(held_copies: Sequence[HeldCopy]) -> None:
    """Raises ValueError unless they make up the model, each number at least once."""
    tensors = held_copies[0].tensors
    have = [(0, item) for held_copy in held_copies for item in held_copy.ranges]
    need = [(0, Place.of_whole(item.path, item.shape).range()) for item in tensors]
    plan_moves(tensors, have, need, [0])


class RangeTransfer(NamedTuple):
    """The ranges that a spare rank sends to one that works."""

    source: int
    to: int
    ranges: frozenset[Range]


def handed_over(
    held_copies: Sequence[Sequence[HeldCopy]], source: HeldCopy, working: int
) -> list[RangeTransfer]:
    """The transfers from spare ranks, which are the last ones: ranges of `source` that no rank
    before them has."""
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
    """The versions of the model that this rank has: that of now, in copies or as the next step
    changes it, backups, and that of the start of the epoch."""
    start, last = session.epoch_start, session.strategy.last
    if start is None or start.version < session.run.state.step:  # else some is of later steps
        facts = session.version_facts()
        version = max(facts.counters.state.step, last.version if last else 0)
        yield HeldVersion(version, session.snapshot(copies).owned, facts)
    if session.backups is not None:
        yield from session.backups.held()
    if start is not None:
        yield start
