"""The list of operations of a rank's step with --reproducible: the passes of its slices of the
batch, one slice after the other, and between them its moves in the tree that sums gradients.

    rank 0 of 2, slices 0 to 2 of 5    PUSH0.0 F0.0 B0.0 NOTE  PUSH0.1 F0.1 B0.1 NOTE  ADD0
                                       RECV_SUM0 ADD0  SUM0 FINISH0 AGREE APPLY

PUSH puts memory for the gradients of a slice on the rank's stack, and NOTE adds the loss of the
slice to them. SUM makes room for the whole sum on ranks that have sent theirs, and FINISH receives
it from rank 0.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from nnmpi.addons.checks.reduction_tree import Action, moves, owners_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.passes import units_of
from nnmpi.schedules.lists.step_list import UPDATE, StepList
from nnmpi.schedules.op import ADDS, PASSES, Kind, Op

MOVES = {
    Action.LEAF: Kind.PUSH,
    Action.ADD: Kind.ADD,
    Action.SEND: Kind.SEND_SUM,
    Action.RECEIVE: Kind.RECV_SUM,
}


def slice_by_slice(a: Arrangement, rank: int, slices: int) -> StepList:
    """Returns a rank's list for --reproducible with so many slices."""
    chain, passes, ops = chain_of(a, rank), list[Op](), list[Op]()
    in_tree = [*_moves(a, rank)]
    for move in in_tree:
        ops.append(move)
        if move.kind is Kind.PUSH:
            of_slice = [*_passes(chain, move.micro)]
            passes += of_slice
            ops += [*of_slice, Op(Kind.NOTE)]
    ops += [Op(Kind.SUM, at=0), Op(Kind.FINISH, at=0), *UPDATE]
    walk = partial(SlicesInTree, in_tree)
    return StepList(chain, (*passes,), slices, (*ops,), notes=slices, walk=walk)


def _moves(a: Arrangement, rank: int) -> Iterator[Op]:
    """Yields a rank's operations in the tree of slices, numbered as micro-batches."""
    slices = 0
    for action, other in moves(owners_of(a.config.slices, a.mesh.size), rank):
        op = Op(MOVES[action], at=0)
        if action is Action.LEAF:
            op, slices = op._replace(micro=slices), slices + 1
        elif action is not Action.ADD:
            op = op._replace(peer=other)
        yield op


def _passes(chain: Chain, micro: int) -> Iterator[Op]:
    stages = [(kind, stage) for kind in (Kind.F, Kind.B) for stage in chain.of_stage]
    return units_of((Op(kind, micro, stage) for kind, stage in stages), chain)


class SlicesInTree:
    """Checks that a rank's list has the operations `moves` in their order, and the passes of a
    slice while its gradients are on top of the stack."""

    def __init__(self, moves: Sequence[Op], step: StepList) -> None:
        self._moves = [*moves]
        self._top: int | None = None  # the slice whose gradients are computed
        self._left = 0  # passes that will add to them
        self._adds = sum(op.kind in ADDS for op in step.passes) // step.notes

    def __call__(self, op: Op) -> str:
        """Checks the next operation of the list; returns a text that says what is wrong, or ""."""
        if op.kind in PASSES:
            if op.micro != self._top:
                return f"the gradients of slice {op.micro} are not on top of the stack"
            self._left -= op.kind in ADDS
        elif op.kind is Kind.NOTE:
            if self._top is None or self._left:
                return "no slice has computed its gradients"
            self._top = None
        elif op.kind in MOVES.values():
            return self._move(op)
        elif op.kind is Kind.SUM and self._moves:
            return f"{self._moves[0]} is missing"
        return ""

    def _move(self, op: Op) -> str:
        if self._top is not None:
            return f"the gradients of slice {self._top} are not complete"
        if not self._moves or self._moves.pop(0) != op:
            return "the tree has another move here"
        if op.kind is Kind.PUSH:
            self._top, self._left = op.micro, self._adds
        return ""
