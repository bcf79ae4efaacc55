"""Adds the operations WRITE and READ (to disk and back) to a rank's list of operations in a step,
and checks their order.

    F0.0 WRITE0.0 F1.0 READ0.0 NOTE READ B1.0 B0.0 AGREE APPLY WRITE

A unit is a part of the model, usually a layer. Here the activations of unit 0 of 2 are on disk
between its forward and backward pass, and the optimizer state (WRITE and READ without a number)
between updates. The disk handles one operation at a time, in the order of the list, and begins to
read when there is memory. So units are read in the order of their backward passes, after all have
been written. The check proves that values are read before they are needed, and that no read or pass
waits for memory that only later operations free.
"""

from collections.abc import Collection, Iterable, Iterator

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import NONE, Kind, Op

OPTIMIZER_STATE = NONE, NONE
"""The (unit, micro-batch) that stands for the optimizer state."""

ENDS = (Kind.TIES, Kind.TERMS, Kind.AGREE, Kind.APPLY)
"""The operations after which the sums of a step are complete."""


def with_swaps(swapped: Collection[int], ops: Iterable[Op], chain: Chain) -> Iterator[Op]:
    """Yields a rank's operations, with WRITE and READ of the units `swapped` and of the optimizer
    state. Units are read in the order of their backward passes, the state after the last forward
    pass."""
    for op in ops:
        yield op
        if op.kind is Kind.F:
            if op.at in swapped:
                yield op._replace(kind=Kind.WRITE)
            if op.at == len(chain.units) - 1:
                for u in sorted(swapped, reverse=True):
                    yield Op(Kind.READ, op.micro, chain.units[u].stage, u)
        elif op.kind is Kind.NOTE:
            yield Op(Kind.READ)
        elif op.kind is Kind.APPLY:
            yield Op(Kind.WRITE)


class OnDisk:
    """Checks the WRITEs and READs in the list of a step, one operation after the other; `swapped`
    are the units whose activations are written to disk."""

    def __init__(self, swapped: Collection[int], step: StepList) -> None:
        self._swapped, self._left = swapped, len(step.ops)
        self._units = len(step.chain.units)
        self._forwards = sum(op.kind is Kind.F for op in step.passes)
        # units and micro-batches with a forward pass, and those of them that are to be written
        self._made, self._unwritten = set[tuple[int, int]](), set[tuple[int, int]]()
        self._moved = {OPTIMIZER_STATE: Kind.WRITE}
        self._ended: Kind | None = None

    def __call__(self, op: Op) -> str:
        """Checks the next operation of the list; returns a text that says what is wrong, or ""."""
        wrong, key = "", (op.at, op.micro)
        if op.kind is Kind.F:
            wrong = self._forward(key)
        elif op.kind in (Kind.B, Kind.I, Kind.W) and not self._has_read(key):
            wrong = "its activations were not read"
        elif op.kind is Kind.AGREE and not self._has_read(OPTIMIZER_STATE):
            wrong = "the optimizer state was not read"
        elif op.kind is Kind.WRITE:
            wrong = self._write(key)
        elif op.kind is Kind.READ:
            wrong = self._read(key)
        self._ended = op.kind if op.kind in ENDS else self._ended
        self._left -= 1
        if not self._left and self._has_read(OPTIMIZER_STATE):
            wrong = wrong or "the optimizer state is not written"
        return wrong

    def _has_read(self, key: tuple[int, int]) -> bool:
        """Returns True if the activations of a (unit, micro-batch), or OPTIMIZER_STATE, are in
        memory or being read."""
        is_moved = key[0] in self._swapped or key in self._moved
        return not is_moved or self._moved.get(key) is Kind.READ

    def _forward(self, key: tuple[int, int]) -> str:
        if self._unwritten:
            return f"needs the room of unit {min(self._unwritten)[0]}, which is not written"
        self._made.add(key)
        if key[0] in self._swapped:
            self._unwritten.add(key)
        return ""

    def _write(self, key: tuple[int, int]) -> str:
        if key == OPTIMIZER_STATE:
            if self._ended is not Kind.APPLY or self._moved.get(key) is not Kind.READ:
                return "the update has not been made, or it is written"
        elif key not in self._unwritten:
            return "there are no activations to be written"
        self._unwritten.discard(key)
        self._moved[key] = Kind.WRITE
        return ""

    def _read(self, key: tuple[int, int]) -> str:
        if self._moved.get(key) is not Kind.WRITE:
            return "it was not written, or is read already"
        of_state = key == OPTIMIZER_STATE
        if of_state and self._ended:
            return "the sums of the step are complete"
        made = sum(of_state or micro == key[1] for _, micro in self._made)
        if made < (self._forwards if of_state else self._units):
            return "forward passes have to come before"
        if self._unwritten:
            return "writes have to come before"
        written = {k for k, kind in self._moved.items() if kind is Kind.WRITE}
        if any(k > key or of_state for k in written - {key, OPTIMIZER_STATE}):
            return "other activations are needed earlier"
        self._moved[key] = Kind.READ
        return ""
