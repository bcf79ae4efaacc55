"""The operations of a training step. `at` is the number of a unit (a part of the model, usually a
layer), of the stage that begins at a boundary, or of a bucket of parameters. A slot is memory that
buckets share in turn.

F B I W        passes of unit `at`: forward; backward, or its halves: gradients of the input, then
               of the parameters
RECOMPUTE      the forward pass again, as the one before was not recorded
RECV_F SEND_F  starts to receive, to send the activations in front of stage `at`
RECV_B SEND_B  starts to receive, to send their gradients
GATHER WAIT    starts to gather the values of bucket `at` into a slot; waits for them
NOTE           this rank's losses are all known: they, and its request to stop or save, can be
               summed
OPEN           from here on the gradients of bucket `at` are written to a slot
SUM FINISH     starts to sum the gradients of bucket `at`, which are final; waits for the sum, and
               frees the slot
TIES TERMS     sums the gradients of parameters that several stages have, over these stages (TIES);
               of parameters that all ranks along tp have, over these ranks (TERMS)
WRITE READ     of `swapping/`: starts to write the activations of unit `at`, or the optimizer state,
               to disk; starts to read them back, and operations that need them wait
PUSH ADD       of `checks/`, which sums the gradients of slices of a batch along a tree: puts memory
               for the gradients of a micro-batch on a stack; adds those on top to the next ones
SEND_SUM       of `checks/`: sends the gradients on top of the stack to another rank along dp, and
RECV_SUM       removes them; receives such gradients, and puts them on the stack
AGREE APPLY    all ranks agree on what decides the update (norm, request); the update

    two units, one rank of two, ZeRO 0    F0.0 F1.0 NOTE B1.0 SUM1 B0.0 SUM0 FINISH1 FINISH0
                                          AGREE APPLY

A schedule orders passes of whole stages: these have a micro-batch and a stage, but no `at`.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

NONE = -1


class Kind(Enum):
    """The kinds of operations in a training step."""

    F = "F"
    B = "B"
    I = "I"
    W = "W"
    RECOMPUTE = "RECOMPUTE"
    RECV_F = "RECV_F"  # starts to receive the input of a stage
    SEND_F = "SEND_F"  # starts to send the output of a stage
    RECV_B = "RECV_B"  # starts to receive the gradient of the output
    SEND_B = "SEND_B"  # starts to send the gradient of the input
    NOTE = "NOTE"
    APPLY = "APPLY"
    GATHER = "GATHER"
    WAIT = "WAIT"
    OPEN = "OPEN"
    SUM = "SUM"
    FINISH = "FINISH"
    TIES = "TIES"
    TERMS = "TERMS"
    WRITE = "WRITE"
    READ = "READ"
    AGREE = "AGREE"
    PUSH = "PUSH"
    ADD = "ADD"
    SEND_SUM = "SEND_SUM"
    RECV_SUM = "RECV_SUM"

    __hash__ = object.__hash__  # members are equal by identity; Enum's hash is slower Python code


COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.RECOMPUTE)
PASSES = frozenset(COMPUTE)
FORWARD = frozenset((Kind.F, Kind.RECOMPUTE))
ADDS = frozenset((Kind.B, Kind.W))
"""The passes that add to gradients of parameters."""

VALUES = frozenset((Kind.GATHER, Kind.WAIT))
RECEIVES = frozenset((Kind.RECV_F, Kind.RECV_B))
SENDS = frozenset((Kind.SEND_F, Kind.SEND_B))
MESSAGES = RECEIVES | SENDS
COLLECTIVES = frozenset((Kind.GATHER, Kind.SUM, Kind.TIES, Kind.TERMS, Kind.AGREE))
"""The operations that ranks with the same parameters start in the same order."""


class Op(NamedTuple):
    """One operation in the list of a rank; a number is NONE (-1) if the kind of operation has none.

    micro   the micro-batch
    stage   of a pass or a message: the stage, of the whole pipeline, on this rank
    at      the number of the unit, of the stage boundary or of the bucket on which it works
    slot    the memory that it uses, of several that buckets share in turn
    peer    of a message between stages: the coordinate along pp of the rank at the other end; of
            SEND_SUM and RECV_SUM, the one along dp

    As text it is kind, `at`, `.micro` and `@slot`, such as SUM3.0@1; without `at`, such as F0.
    """

    kind: Kind
    micro: int = NONE
    stage: int = NONE
    at: int = NONE
    slot: int = NONE
    peer: int = NONE

    def __str__(self) -> str:
        text = self.kind.value + (str(self.at) if self.at != NONE else "")
        if self.micro != NONE:
            text += f".{self.micro}" if self.at != NONE else str(self.micro)
        return text + (f"@{self.slot}" if self.slot != NONE else "")


def as_text(ops: Iterable[Op]) -> str:
    """Returns a list of operations as one line of text, such as "F0.0 F1.0 B1.0 SUM1"."""
    return " ".join(map(str, ops))
