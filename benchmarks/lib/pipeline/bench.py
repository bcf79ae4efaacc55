"""Bench: the jobs, profiles and flags that all sections of benchmarks/pipeline.py use."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lib.jobs import Job, Task
from lib.pipeline import model as theory
from lib.pipeline.cases import PIPEDREAM_STEPS, Case, Model, models_of
from lib.pipeline.model import Profiled
from lib.pipeline.run import measured_costs
from lib.rounds import interleaved
from lib.timing import Row

Times = Mapping[Case, Sequence[float]]
"""Seconds per step in each round."""


@dataclass
class Bench:
    """What all sections use: a job of one rank and one of two, and profiles of models."""

    jobs: Mapping[int, Job]
    micro_batches: Sequence[int]  # of the speed-up
    rounds: int
    seconds: float  # of a case in a round
    small: bool
    timeout: float
    facts: Row
    profiles: dict[str, Profiled] = field(default_factory=dict)

    def model(self, name: str) -> Model:
        return models_of(self.small)[name]

    def profiled(self, name: str) -> Profiled:
        """The profile of a model, measured once."""
        if name not in self.profiles:
            costs = measured_costs(name, self.small, self.timeout)
            self.profiles[name] = Profiled.of(self.model(name), costs)
        return self.profiles[name]

    def one(self, name: str, m: int) -> Case:
        """One rank that computes m micro-batches one after the other."""
        return Case(name, m, m * self.model(name).samples, small=self.small)

    def pipeline(self, name: str, m: int, schedule: str = "1f1b") -> Case:
        """Two ranks, with the best cut."""
        cut = self.profiled(name).cut_text(theory.stages_of(schedule, 2))
        return self.one(name, m)._replace(pp=2, schedule=schedule, cut=cut)

    def time(self, cases: Iterable[Case]) -> Times:
        """Times the cases in interleaved rounds, after a warm-up that sets their length."""
        firsts = {}
        for case in cases:
            least = PIPEDREAM_STEPS if case.schedule == "pipedream" else 1
            firsts[case] = self.jobs[case.ranks], Task(case.text, case.batch, least)
        return interleaved(firsts, self.rounds, self.seconds)

    def row(self, section: str, case: Case, **more: object) -> Row:
        """What every row has; the seconds of a step are among `more`."""
        return {
            "benchmark": "pipeline",
            "section": section,
            "case": case.model,
            "model": self.model(case.model).text,
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
