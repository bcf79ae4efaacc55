"""Race: simulates all ranks, each carrying out its list of operations, to find deadlocks."""

from collections import Counter
from collections.abc import Sequence

from nnmpi.schedules.lists.passes import message_of
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.op import NONE, PASSES, Kind, Op

STARTS = {Kind.WAIT: Kind.GATHER, Kind.FINISH: Kind.SUM}
"""The operation that starts the work for which another operation waits."""

SENT = {Kind.RECV_F: Kind.SEND_F, Kind.RECV_B: Kind.SEND_B}
"""For each operation that receives a message, the one that sends it."""


class Race:
    """Simulates ranks that carry out their lists, until all have ended or none can go on;
    groups[p] has the lists of the ranks along dp at place p of the pipeline.

    A pass waits until its message has been sent, and a sum along a tree until the other rank is
    ready to send or to receive it. WAIT (for a gather) and FINISH (for a sum) wait until all ranks
    that take part have started the collective.
    """

    def __init__(self, groups: Sequence[Sequence[StepList]]) -> None:
        self._groups = groups
        self._ranks = [(p, d) for p, row in enumerate(groups) for d in range(len(row))]
        self._next = dict.fromkeys(self._ranks, 0)
        self._started = {
            (p, d): Counter((Kind.GATHER, b, NONE, NONE) for b in groups[p][d].begins)
            for p, d in self._ranks
        }

    def run(self) -> None:
        """Runs the simulation; raises ScheduleError if ranks wait for each other in a circle."""
        while any(self._advance(*rank) for rank in self._ranks):
            pass
        steps = {(p, d): self._groups[p][d].ops for p, d in self._ranks}
        waiting = [
            f"{steps[rank][k]} (pp {rank[0]}, dp {rank[1]})"
            for rank, k in self._next.items()
            if k < len(steps[rank])
        ]
        if waiting:
            raise ScheduleError(f"deadlock: ranks wait at {', '.join(waiting)}")

    def _advance(self, place: int, replica: int) -> bool:
        """Carries out the operations of one rank (at coordinate `place` along pp and `replica`
        along dp) until it has to wait for another rank; returns True if it could carry out any."""
        step, begin = self._groups[place][replica], self._next[place, replica]
        for op in step.ops[begin:]:
            if self._waits(op, step, place, replica):
                break
            self._started[place, replica][op.kind, op.at, op.micro, op.peer] += 1
            self._next[place, replica] += 1
        return self._next[place, replica] > begin

    def _waits(self, op: Op, step: StepList, place: int, replica: int) -> bool:
        if op.kind in PASSES:
            message = message_of(op, step.chain, sends=False)
            if message is None:
                return False
            key = SENT[message.kind], message.at, message.micro, place
            return not self._started[message.peer, replica][key]
        if op.kind is Kind.SEND_SUM:  # MPI may let it wait until the other rank receives
            other, k = self._groups[place][op.peer].ops, self._next[place, op.peer]
            return k == len(other) or other[k] != op._replace(kind=Kind.RECV_SUM, peer=replica)
        if op.kind is Kind.RECV_SUM:
            received = self._started[place, replica][op.kind, op.at, op.micro, op.peer]
            sent_sums = self._started[place, op.peer][Kind.SEND_SUM, op.at, op.micro, replica]
            return sent_sums <= received
        if op.kind not in STARTS:
            return False
        key = STARTS[op.kind], op.at, op.micro, NONE
        times = self._started[place, replica][key]
        if any(self._started[place, d][key] < times for d in range(len(self._groups[place]))):
            return True
        return op.kind is Kind.FINISH and not step.scatters and self._waits_for_tied(op, step)

    def _waits_for_tied(self, op: Op, step: StepList) -> bool:
        """True if a parameter of the bucket has other stages that have not started its sum."""
        tied = step.chain.tied.get(op.at)
        for p, d in self._ranks if tied is not None else ():
            for b, variable in self._groups[p][d].chain.tied.items():
                if variable == tied and not self._started[p, d][Kind.SUM, b, op.micro, NONE]:
                    return True
        return False
