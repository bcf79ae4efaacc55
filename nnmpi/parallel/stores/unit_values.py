"""UnitValues: under ZeRO 3, where parameters take turns in memory, each unit asks for its values
before its pass begins. It gets the operations on values in front of the pass:

    list    WAIT0 GATHER1  F0  WAIT1 GATHER2  F1  WAIT2  F2
    units   (WAIT0 GATHER1, F0)  (WAIT1 GATHER2, F1)  (WAIT2, F2)

A replay stops between units. A forward pass by autograd, and the first half of its backward pass,
cannot stop: the operation of the first unit runs all of them. There a unit asks when the first of
its parameters is read; when the executor comes to its operation, it has asked already."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from nnmpi.parallel.recorder import Do
from nnmpi.schedules.op import ADDS, PASSES, VALUES, Op

Calls: TypeAlias = Sequence[tuple[Do, Op]]
"""Operations of a list, each with the function that carries it out."""


class AskingUnit(NamedTuple):
    """The pass of a unit, and the operations on parameter values that it asks for."""

    values: Calls
    op: Op


class UnitValues:
    """Carries out the operations on values that units ask for, once each, in order."""

    def __init__(self) -> None:
        self._left = deque[AskingUnit]()
        self._under_way: Op | None = None  # the pass
        self._at_next_unit: Callable[[], object] | None = None

    @staticmethod
    def of(calls: Calls) -> tuple[Calls, Sequence[AskingUnit]]:
        """Divides a list into (operations that the executor carries out, units). Operations on
        values belong to the unit whose pass is next, but at the end of the list."""
        others, units, values = list[tuple[Do, Op]](), list[AskingUnit](), list[tuple[Do, Op]]()
        for do, op in calls:
            if op.kind in PASSES:
                units.append(AskingUnit(values, op))
                values = []
            (values if op.kind in VALUES else others).append((do, op))
        return [*others, *values], units

    def begin(self, units: Sequence[AskingUnit]) -> None:
        """Begins a step or an evaluation, in which `units` ask in this order."""
        self._left = deque(units)

    def carry_out(self, do: Do, op: Op) -> None:
        """Carries out the pass of a unit by do(op), after what it has not asked for yet."""
        if self._left and self._left[0].op is op:
            self._answer()
        self._under_way = op
        try:
            do(op)
        finally:
            self._under_way = None

    def next_unit(self, path: str) -> bool:
        """Called when the pass under way reads the parameter `path`, which is not in memory: its
        next unit begins, and asks for its values. Returns False if no pass is under way.

        Raises ValueError where gradients of parameters are computed, since all gradients of a unit
        must be final before the next unit; and in the last unit of a pass."""
        op = self._under_way
        if op is None:
            return False
        if op.kind in ADDS:
            raise ValueError(
                f"{path} is read in the backward pass of other layers, for which zero 3 has not "
                "gathered it: let a function that runs again (checkpoint, --recompute) use the "
                "parameters that it has used first, or use --zero 2"
            )
        if not self._left or self._left[0].op._replace(at=op.at) != op:
            raise ValueError(
                f"{path}, or a parameter that was read before it, is read out of the order in "
                "which layers used them when the model was recorded, and zero 3 gathers them in "
                "this order: read each one in the same layers of every pass, or use --zero 2"
            )
        if self._at_next_unit is not None:
            self._at_next_unit()
        self._answer()
        return True

    @contextmanager
    def telling(self, at_next_unit: Callable[[], object]) -> Iterator[None]:
        """A context for a pass that cannot stop, beside a replay: at_next_unit() is called before
        the next unit begins, while the values of the one before are still in memory."""
        self._at_next_unit = at_next_unit
        try:
            yield
        finally:
            self._at_next_unit = None

    def _answer(self) -> None:
        for do, op in self._left.popleft().values:
            do(op)
