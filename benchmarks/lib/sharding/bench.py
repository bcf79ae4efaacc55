"""Bench: what the sections of benchmarks/sharding.py have in common."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from lib.jobs import Job, Task
from lib.rounds import interleaved
from lib.sharding import layers, run
from lib.sharding.cases import Case, models_of
from lib.sharding.layers import LayerCase
from lib.timing import Row

AnyCase = TypeVar("AnyCase", Case, LayerCase)


@dataclass
class Bench:
    """Flags, and facts of the machine."""

    rounds: int
    seconds: float  # of a case in a round
    small: bool
    timeout: float
    facts: Row
    sizes: dict[str, int] = field(default_factory=dict)

    def case(self, model: str, ranks: int = 1, **layout: object) -> Case:
        """A run with `ranks` times the samples of the model."""
        batch = ranks * models_of(self.small)[model].samples
        return Case(model, batch, small=self.small)._replace(**layout)

    def parameters(self, case: Case) -> int:
        """How many its model has, counted once."""
        name = case.model
        if name not in self.sizes:
            made = models_of(self.small)[name].build()
            self.sizes[name] = sum(p.size for p in made.parameters())
        return self.sizes[name]

    def time(self, cases: Sequence[AnyCase]) -> dict[AnyCase, list[float]]:
        """Seconds per step in interleaved rounds, by a job for each number of ranks."""
        with self._jobs(cases) as jobs:
            firsts = {case: (jobs[case.ranks], Task(case.text, case.batch, 1)) for case in cases}
            return interleaved(firsts, self.rounds, self.seconds)

    @contextmanager
    def _jobs(self, cases: Sequence[AnyCase]) -> Iterator[Mapping[int, Job]]:
        serves = run if isinstance(cases[0], Case) else layers
        with ExitStack() as stack:
            yield {
                n: stack.enter_context(
                    Job(f"the job of {n}", n, partial(serves.processes, n), self.timeout)
                )
                for n in sorted({case.ranks for case in cases})
            }

    def row(self, section: str, case: Case, **more: object) -> Row:
        """What every row of a training run has."""
        return {
            "benchmark": "sharding",
            "section": section,
            "case": case.model,
            "model": models_of(self.small)[case.model].text,
            "layout": case.name,
            "ranks": case.ranks,
            "dp": case.dp,
            "pp": case.pp,
            "tp": case.tp,
            "zero": case.zero,
            "micro_batches": case.micro_batches,
            "batch_size": case.batch,
            "algorithm": case.allreduce if case.dp > 1 else "",
            "parameters": self.parameters(case),
            **more,
            **self.facts,
        }

    def layer_row(self, section: str, case: LayerCase, **more: object) -> Row:
        """What every row of library layers has."""
        return {
            "benchmark": "sharding",
            "section": section,
            "case": "x".join(map(str, case.sizes)),
            "layout": case.kind,
            "ranks": case.ranks,
            **more,
            **self.facts,
        }
