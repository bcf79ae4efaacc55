"""OnDisk: which activations, and whether the optimizer state, are on disk while a list is walked
through.

The disk does one thing at a time, in the order of the list, and begins to read when there is room.
So units are read in the order of their backward passes, after all have been written.
"""

from nnmpi.parallel.step_list.op import NONE, Kind, Op

OPTIMIZER_STATE = NONE, NONE
"""The unit and micro-batch that stand for the optimizer state."""


class OnDisk:
    """The writes and reads of a list so far, of a step whose passes are carried out stage by stage.

    swapped    the units whose activations are written; None if nothing ever is on disk
    forwards   the number of forward passes of the step
    unwritten  units and micro-batches that a forward pass has made, and that are to be written
    """

    def __init__(self, swapped: frozenset[int] | None, units: int, forwards: int) -> None:
        self._swapped = swapped or frozenset[int]()
        self._units, self._forwards = units, forwards
        self._made, self.unwritten = set[tuple[int, int]](), set[tuple[int, int]]()
        self._moved = {} if swapped is None else {OPTIMIZER_STATE: Kind.WRITE}

    def has_read(self, key: tuple[int, int]) -> bool:
        """Returns True if a unit's activations of a micro-batch, or the optimizer state, are in
        memory, or are being read."""
        is_moved = key[0] in self._swapped or key in self._moved
        return not is_moved or self._moved.get(key) is Kind.READ

    def forward(self, key: tuple[int, int]) -> None:
        """Notes the forward pass of a unit on a micro-batch."""
        self._made.add(key)
        if key[0] in self._swapped:
            self.unwritten.add(key)

    def write(self, op: Op, is_updated: bool) -> str:
        """Notes a write; returns what is wrong with it, or ""."""
        key = op.at, op.micro
        if key == OPTIMIZER_STATE:
            if not is_updated or self._moved.get(key) is not Kind.READ:
                return "the update has not been made, or it is written"
        elif key not in self.unwritten:
            return "there are no activations to be written"
        self.unwritten.discard(key)
        self._moved[key] = Kind.WRITE
        return ""

    def read(self, op: Op, is_ending: bool) -> str:
        """Notes a read; returns what is wrong with it, or ""."""
        key = op.at, op.micro
        if self._moved.get(key) is not Kind.WRITE:
            return "it was not written, or is read already"
        of_state = key == OPTIMIZER_STATE
        if of_state and is_ending:
            return "the sums of the step are complete"
        made = sum(of_state or m == op.micro for _, m in self._made)
        if made < (self._forwards if of_state else self._units):
            return "forward passes have to come before"
        if self.unwritten:
            return "writes have to come before"
        written = {k for k, kind in self._moved.items() if kind is Kind.WRITE}
        if any(k > key or of_state for k in written - {key, OPTIMIZER_STATE}):
            return "other activations are needed earlier"
        self._moved[key] = Kind.READ
        return ""
