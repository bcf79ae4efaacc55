"""The harness of benchmarks/pipeline.py and sharding.py: sections that are measured one by one.

A section times runs of training (`lib.runs`) in interleaved rounds, by jobs of ranks that sleep
between their turns, or asks ranks to count something once. It gives one row per measurement.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from lib import jobs, panels, ranks, timing
from lib.flags import Parser
from lib.jobs import Job, Task
from lib.panels import Panel
from lib.rounds import interleaved
from lib.timing import Row
from nnmpi.arrays import blas


class Timed(Protocol):
    """What a job can time: a case with a text for the ranks that run it."""

    @property
    def ranks(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def least_steps(self) -> int:
        """Timed are multiples of so many steps."""


AnyCase = TypeVar("AnyCase", bound=Timed)


@dataclass
class Bench:
    """What all sections use: flags, and facts of the machine."""

    rounds: int
    seconds: float  # of a case in a round
    small: bool
    timeout: float
    facts: Row

    def time(
        self, cases: Sequence[AnyCase], module: str = ranks.__name__
    ) -> dict[AnyCase, list[float]]:
        """Seconds per step in interleaved rounds, by a job for each number of ranks."""
        with ExitStack() as stack:
            of = {
                n: stack.enter_context(
                    Job(f"the job of {n}", n, partial(ranks.processes, module, n), self.timeout)
                )
                for n in sorted({case.ranks for case in cases})
            }
            firsts = {c: (of[c.ranks], Task(c.text, c.batch, c.least_steps)) for c in cases}
            found = interleaved(firsts, self.rounds, self.seconds)
            return {case: [sample.wall for sample in samples] for case, samples in found.items()}

    def ask(self, what: str, cases: Sequence[Timed], module: str = ranks.__name__) -> list[Any]:
        """An answer for each case, from ranks that are started for it; raises JobError."""
        words = [what, *(case.text for case in cases)]
        found: list[Any] = ranks.ask(module, cases[0].ranks, words, self.timeout)
        return found


class Study(NamedTuple):
    """A benchmark: how its sections are measured, printed and drawn."""

    script: str
    bench: Callable[[argparse.Namespace, Row], Any]
    sections: Mapping[str, Callable[[Any], list[Row]]]
    tables: Mapping[str, Callable[[Sequence[Row]], str]]
    panels: Sequence[Panel]
    ranks: str  # in the title of the plot

    def parser(
        self, doc: str | None, plotted: str, rounds: int, seconds: float, timeout: float
    ) -> Parser:
        """The flags of every study, with these defaults."""
        names = ", ".join(self.sections)
        p = Parser(doc, plotted)
        p.add_argument("--only", default=names.replace(" ", ""), help=f"which of {names}")
        p.add_argument("--rounds", type=int, default=rounds)
        p.add_argument("--seconds", type=float, default=seconds, help="per case and round")
        p.add_argument(
            "--timeout", type=float, default=timeout, help="seconds for one task of a job"
        )
        p.add_argument("--small", action="store_true", help="small models: to see that it runs")
        return p

    def parse(self, p: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
        a = p.parse_args(argv)
        wanted = a.only.split(",")
        for unknown in [name for name in wanted if name not in self.sections]:
            p.error(f"{unknown!r} is not a section; there are {', '.join(self.sections)}")
        a.only = [name for name in self.sections if name in wanted]
        if a.rounds < 1 or not 0 < a.seconds < float("inf"):
            enough = f"{p.get_default('rounds')} of {p.get_default('seconds')}"
            p.error(f"--rounds {a.rounds} of {a.seconds:g} s are too short: try {enough}")
        p.check_outputs(a)
        return a

    def run(self, a: argparse.Namespace) -> None:
        """Measure all sections, print and write the results."""
        jobs.run(self.script, lambda: self._measure(a))

    def _measure(self, a: argparse.Namespace) -> None:
        os.environ.update(jobs.ONE_THREAD)
        blas.tune()
        facts = timing.machine()
        timing.warn_if_busy(facts)
        print(", ".join(f"{key} {value}" for key, value in facts.items()))
        bench, rows = self.bench(a, facts), list[Row]()
        for name in a.only:
            found = self.sections[name](bench)
            if found:
                print(f"\n{self.tables[name](found)}", flush=True)
            rows += found
        timing.finish(a.json, rows)
        if a.plot:
            panels.draw(rows, a.plot, self.panels, self.ranks)
            print(f"plot written to {a.plot}", file=sys.stderr)
