"""Swaps: activations that are on disk between the passes of their unit, and optimizer state that is
there between updates, where memory does not suffice (--memory).

    units 0 and 1 of 3    F0.0 WRITE0.0 F1.0 WRITE1.0 F2.0 READ1.0 READ0.0 NOTE READ
                          B2.0 B1.0 B0.0 AGREE APPLY WRITE

The disk does one thing at a time, in the order of the list, and begins to read when there is room.
So units are read in the order of their backward passes, after all have been written.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nnmpi.parallel.arrangement.residence import Residence, Residences
from nnmpi.parallel.step_list.op import NONE, Kind, Op

STATE = NONE, NONE
"""The unit and micro-batch that stand for the optimizer state."""


def swapped_units(residences: Residences) -> frozenset[int]:
    """Returns the units whose activations are swapped: each stage is one unit."""
    return frozenset(u for u, how in enumerate(residences.choice) if how is Residence.SWAP)


def with_swaps(ops: Iterable[Op], swapped: Collection[int], last: int) -> Iterator[Op]:
    """Yields a list in which activations and optimizer state go to disk and come back; `last` is
    the unit whose forward pass is the last one of a micro-batch."""
    for op in ops:
        yield op
        if op.kind is Kind.F:
            if op.at in swapped:
                yield Op(Kind.WRITE, op.at, op.micro)
            if op.at == last:
                for u in sorted(swapped, reverse=True):
                    yield Op(Kind.READ, u, op.micro)
        elif op.kind is Kind.NOTE:
            yield Op(Kind.READ)
        elif op.kind is Kind.APPLY:
            yield Op(Kind.WRITE)


class OnDisk:
    """What is on disk while the list of a rank is walked through.

    moved   the last WRITE or READ of each unit and micro-batch, and of the optimizer state
    units   how many there are, each of which is a stage
    losses  the number of forward passes of the step
    passes  the last pass of each unit and micro-batch
    ended   the operations of the update
    """

    def __init__(
        self,
        swapped: frozenset[int] | None,
        units: int,
        losses: int,
        passes: Mapping[tuple[int, int], Kind],
        ended: Sequence[Kind],
    ) -> None:
        self._swapped: Collection[int] = swapped or ()
        self._units, self._losses = units, losses
        self._passes, self._ended = passes, ended
        self.moved = {} if swapped is None else {STATE: Kind.WRITE}

    def has(self, key: tuple[int, int]) -> bool:
        """Returns True if activations, or the optimizer state, are in memory or are being read."""
        is_swapped = key[0] in self._swapped or key in self.moved
        return not is_swapped or self.moved.get(key) is Kind.READ

    def unwritten(self) -> list[int]:
        """Returns the units with activations that are to be written, and are not."""
        made = (key for key, kind in self._passes.items() if kind is Kind.F)
        return [u for u, m in made if u in self._swapped and (u, m) not in self.moved]

    def write(self, op: Op) -> str:
        """Notes a write; returns what is wrong with it, or ""."""
        key = op.at, op.micro
        if key == STATE:
            if self._ended[-1:] != [Kind.APPLY] or self.moved.get(key) is not Kind.READ:
                return "the update has not been made, or it is written"
        elif key in self.moved or self._passes.get(key) is not Kind.F:
            return "no forward pass has made its activations, or they are needed or written"
        elif op.at not in self._swapped:
            return "its activations stay in memory"
        self.moved[key] = Kind.WRITE
        return ""

    def read(self, op: Op) -> str:
        """Notes a read; returns what is wrong with it, or "".

        Reads follow all forward passes, in the order in which they are needed: the disk does one
        thing at a time, and a read may wait for the room of what it stands in front of.
        """
        key = op.at, op.micro
        if self.moved.get(key) is not Kind.WRITE:
            return "it is not on disk"
        on_disk = {k for k, kind in self.moved.items() if kind is Kind.WRITE}
        made = sum(key == STATE or m == op.micro for _, m in self._passes)
        if made < (self._losses if key == STATE else self._units):
            return "forward passes have to come before"
        if self.unwritten():
            return "writes have to come before"
        if any(k > key or key == STATE for k in on_disk - {key, STATE}):
            return "other activations are needed earlier"
        self.moved[key] = Kind.READ
        return ""
