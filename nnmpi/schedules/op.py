"""The operations of a training step, and the programs of a model that is not a pipeline.

F   forward pass of a micro-batch        NOTE   losses are known: gradients may be summed
B   its backward pass: gradients add up  APPLY  the sums are complete: parameters are updated

    1f1b on one rank    F0 B0 F1 B1 F2 NOTE B2 APPLY
    evaluation          F0 F1

Pipelines (`pipeline.py`) may divide B into I and W, compute F twice, and send messages:

I   gradient of the input of a stage     RECOMPUTE  the forward pass again, recorded this time
W   gradients of its weights, later      RECV_F SEND_F  an activation: from, to another stage
                                         RECV_B SEND_B  a gradient: from, to another stage

An operation is a value and does not say how it is carried out. It has no rank: it is in the program
of one. These files depend on `Kind` and change with it: `lowering.py` (the order of operations),
`proof.py` (their dependencies), `sim/pipeline.py` (their cost), `planning/paper/activations.py`
(which activations are alive), and the executor.
"""

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The kinds of operations in a training step. F to APPLY are in the programs of schedules:
    forward pass F and backward pass B, or its halves I (gradient of the input) and W (gradients of
    weights); messages between stages; NOTE (losses are known) and APPLY (the update).

    GATHER to AGREE are only in the lists that ranks carry out (`parallel/step_list/op.py`): they
    work on buckets of gradients or parameters, or on files.
    """

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
    PUSH = "PUSH"
    ADD = "ADD"
    SEND_SUM = "SEND_SUM"
    RECV_SUM = "RECV_SUM"
    AGREE = "AGREE"

    __hash__ = object.__hash__  # members are equal by identity; Enum's hash is slower Python code


COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.RECOMPUTE)
MESSAGES = (Kind.RECV_F, Kind.SEND_F, Kind.RECV_B, Kind.SEND_B)


class Op(NamedTuple):
    """One operation in the program of a rank: its kind, and the micro-batch and stage on which it
    works."""

    kind: Kind
    micro: int = -1  # micro-batch
    stage: int = 0  # of the whole pipeline
    peer: int = -1  # for a message: the rank at the other end, along pp

    def __str__(self) -> str:
        return self.kind.value + (str(self.micro) if self.micro >= 0 else "")
