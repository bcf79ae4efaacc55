"""The smallest case that fails as a given one does: dull decisions, few faults, early ones."""

from collections.abc import Callable
from typing import Any

from simulation.case import Case, Fault
from simulation.verdict import Verdict, verdict

SMALLEST_BLOCK = 128  # of decisions that become dull together: one in so many


class Shrinking:
    """Makes a case smaller as long as it fails in the same way."""

    def __init__(self, case: Case, failed: Verdict, judge: Callable[[Case], Verdict]) -> None:
        self.case, self.kind, self._judge = case, failed.kind, judge
        self.decisions = failed.scheduler.decisions.drawn

    def takes(self, **changes: Any) -> bool:
        """True if the case still fails with these changes; then it has them."""
        smaller = self.case._replace(**changes)
        if smaller == self.case:
            return False
        result = self._judge(smaller)
        if result.kind != self.kind:
            return False
        self.case, self.decisions = smaller, result.scheduler.decisions.drawn
        return True

    def drop_chances(self) -> None:
        """Drops what is late or decided by the seed."""
        nothing = {
            "late": 0.0,
            "buffered": 0.0,
            "unnoticed": 0.0,
            "ghost": 0.0,
            "asleep": None,
            "slow": (),
            "longest": 6,
        }
        if self.takes(drawn=(), order="random", **nothing):
            return
        for name, value in nothing.items():
            self.takes(**{name: value})
        self.takes(drawn=tuple(self.decisions))

    def drop_faults(self) -> None:
        """Drops faults that do not matter."""
        self.takes(cut=0)
        for kind in ("kills", "signals", "jumps"):
            for fault in getattr(self.case, kind):
                self.takes(**{kind: tuple(f for f in getattr(self.case, kind) if f != fault)})

    def dull_decisions(self) -> None:
        """Replaces blocks of decisions by dull ones."""
        drawn = self.case.drawn or ()
        size = len(drawn)
        while size >= max(1, len(drawn) // SMALLEST_BLOCK):
            for i in range(0, len(drawn), size):
                block = self.case.drawn[i : i + size]
                rest = self.case.drawn[i + size :]
                self.takes(drawn=(*self.case.drawn[:i], *([0] * len(block)), *rest))
            size //= 2

    def move_faults(self) -> None:
        """Lets faults happen earlier."""
        for kind in ("kills", "signals"):
            for i, fault in enumerate(getattr(self.case, kind)):
                step = fault.after // 2
                while step:
                    faults: list[Fault] = list(getattr(self.case, kind))
                    after = faults[i].after - step
                    faults[i] = faults[i]._replace(after=after)
                    if after < 1 or not self.takes(**{kind: tuple(faults)}):
                        step //= 2


def shrunk(case: Case, failed: Verdict, judge: Callable[[Case], Verdict] = verdict) -> Case:
    """The smallest case found that fails as this one."""
    shrinking = Shrinking(case, failed, judge)
    shrinking.drop_chances()
    shrinking.drop_faults()
    shrinking.dull_decisions()
    shrinking.move_faults()
    return shrinking.case
