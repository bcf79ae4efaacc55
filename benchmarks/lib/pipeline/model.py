"""What benchmarks/pipeline.py expects: from the measured costs of layers, and from formulas."""

from collections.abc import Sequence
from typing import NamedTuple

from lib.ranks import graph_of
from lib.runs import Model
from nnmpi import Config
from nnmpi.addons.planning.machine import TYPICAL
from nnmpi.addons.simulator.pipeline import Costs, Simulation, simulate, stage_times
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.partition import SplitPoints, Unit
from nnmpi.parallel.stage_cut import best_cut
from nnmpi.parallel.unit_costs import UnitCost, stage_costs
from nnmpi.schedules.lists.of_schedule import lists
from nnmpi.schedules.pipeline import SCHEDULES

VIRTUAL = 2  # stages of a rank under `interleaved`, as the trainer has by default


def stages_of(schedule: str, ranks: int) -> int:
    """The stages of all ranks."""
    return ranks * SCHEDULES[schedule].stages_a_rank(VIRTUAL)


class Profiled(NamedTuple):
    """A model, and the measured cost of each unit in one micro-batch."""

    units: Sequence[Unit]
    costs: Sequence[UnitCost]

    @classmethod
    def of(cls, model: Model, costs: Sequence[UnitCost]) -> "Profiled":
        return cls(partition.units(graph_of(model)[1]), costs)

    def cut(self, stages: int) -> SplitPoints:
        """The cut whose slowest stage is fastest."""
        if stages == 1:
            return ()
        return best_cut(Config(pp=stages), self.units, self.costs, TYPICAL.near)

    def cut_text(self, stages: int) -> str | None:
        """The cut as --cut takes it."""
        return partition.as_text(self.cut(stages), self.units) if stages > 1 else None

    def shares(self, stages: int) -> list[float]:
        """The share of each stage in the time of a micro-batch."""
        seconds = [f + i + w for f, i, w, *_ in stage_costs(self.costs, self.cut(stages))]
        return [s / sum(seconds) for s in seconds]

    def simulated(
        self, schedule: str, ranks: int, micro_batches: int, recompute: bool = False
    ) -> Simulation:
        """A step without its update, if messages took no time."""
        count = stages_of(schedule, ranks)
        stages = stage_costs(self.costs, self.cut(count))
        times = [stage_times(f, i, w) for f, i, w, *_ in stages]
        plan = lists(SCHEDULES[schedule], ranks, micro_batches, count // ranks, recompute=recompute)
        return simulate(plan, Costs(times), [cost.activation_bytes for cost in stages])

    def speedup(self, schedule: str, ranks: int, micro_batches: int) -> float:
        """The speed of a pipeline over that of one rank, as simulated."""
        one = self.simulated("1f1b", 1, micro_batches).makespan
        return one / self.simulated(schedule, ranks, micro_batches).makespan


def ideal_speedup(p: int, m: int) -> float:
    """The speed of p equal stages over that of one rank: p m / (m + p - 1)."""
    return p * m / (m + p - 1)


def recompute_speed(m: int) -> float:
    """Speed with recompute over that without, on one rank: all forward passes but one run twice.

    A backward pass takes as long as two forward passes.
    """
    return 3 / (3 + (m - 1) / m)
