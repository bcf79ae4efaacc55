"""The operations that a training step is made of, and the schedule of a model that is not cut.

F   a micro-batch goes forward           REDUCE   gradients leave, as soon as they are final
B   it comes back: gradients add up      UPDATE   their sums have arrived: parameters move

    one_stage(3)     F0 B0 F1 B1 F2 REDUCE B2 UPDATE
    apart(2)         F0 B0 REDUCE F1 B1 REDUCE UPDATE
"""

from enum import Enum
from itertools import chain
from typing import NamedTuple


class Kind(Enum):
    """What an operation does."""

    F = "F"
    B = "B"
    REDUCE = "REDUCE"
    UPDATE = "UPDATE"


class Op(NamedTuple):
    """One operation, and of which micro-batch."""

    kind: Kind
    micro: int = -1

    def __str__(self) -> str:
        return self.kind.value + (str(self.micro) if self.micro >= 0 else "")


def one_stage(micro_batches: int) -> list[Op]:
    """Forward and back, one micro-batch after the other: no more than one is held at a time."""
    ops = [Op(kind, m) for m in range(micro_batches) for kind in (Kind.F, Kind.B)]
    return [*ops[:-1], Op(Kind.REDUCE), ops[-1], Op(Kind.UPDATE)]


def apart(micro_batches: int) -> list[Op]:
    """The gradient of each micro-batch leaves by itself."""
    each = ((Op(Kind.F, m), Op(Kind.B, m), Op(Kind.REDUCE)) for m in range(micro_batches))
    return [*chain.from_iterable(each), Op(Kind.UPDATE)]
