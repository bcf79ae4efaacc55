"""Bench: what the sections of benchmarks/pipeline.py have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lib import study
from lib.pipeline import model as theory
from lib.pipeline.model import Profiled
from lib.runs import PIPELINE, Case, Model
from lib.timing import Row
from nnmpi.parallel.unit_costs import UnitCost

Times = Mapping[Case, Sequence[float]]
"""Seconds per step in each round."""


@dataclass
class Bench(study.Bench):
    """Flags, facts of the machine, and profiles of models."""

    micro_batches: Sequence[int] = ()  # of the speed-up
    profiles: dict[str, Profiled] = field(default_factory=dict)

    def model(self, name: str) -> Model:
        return PIPELINE[name][self.small]

    def profiled(self, name: str) -> Profiled:
        """The profile of a model, of one micro-batch, measured once by a process of its own."""
        if name not in self.profiles:
            [costs] = self.ask("profile", [self.one(name, 1)])
            self.profiles[name] = Profiled.of(self.model(name), [UnitCost(*row) for row in costs])
        return self.profiles[name]

    def one(self, name: str, m: int) -> Case:
        """One rank that computes m micro-batches one after the other."""
        batch = m * self.model(name).samples
        return Case("pipeline", name, batch, m, allreduce="auto", small=self.small)

    def pipeline(self, name: str, m: int, schedule: str = "1f1b") -> Case:
        """Two ranks, with the best cut."""
        cut = self.profiled(name).cut_text(theory.stages_of(schedule, 2))
        return self.one(name, m)._replace(pp=2, schedule=schedule, cut=cut)

    def row(self, section: str, case: Case, **more: object) -> Row:
        """What every row has; the seconds of a step are among `more`."""
        return {
            "benchmark": "pipeline",
            "section": section,
            "case": case.model,
            "model": case.built.text,
            "schedule": case.schedule if case.pp > 1 or case.recompute else "",
            "ranks": case.ranks,
            "pp": case.pp,
            "dp": case.dp,
            "micro_batches": case.micro_batches,
            "batch_size": case.batch,
            "cut": case.cut or "",
            **more,
            **self.facts,
        }
