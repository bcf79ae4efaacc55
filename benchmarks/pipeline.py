"""Pipelines beside theory: python benchmarks/pipeline.py [--json out.json] [--plot out.png]

    speed-up   two ranks over one that computes the same micro-batches: an MLP and a CNN whose
               halves cost the same, beside p m / (m + p - 1), and mnist-cnn beside its simulation
    schedules  zb-h1 over 1f1b and interleaved over gpipe at few micro-batches, then all six at 8
    memory     activations of the first stage under 1f1b and gpipe, 16 micro-batches
    recompute  one rank that runs forward passes again: its speed and its activations
    bytes      sent in a step by a pipeline and by data parallelism, of an MLP with large layers
    network    their seconds on the emulated cluster of scripts/cluster, at 1 Gbit/s; needs root

Every rank has one BLAS thread, one rank alone too. Ranks are started once and sleep between their
turns. What is compared runs in the same rounds, pairs back to back: a ratio is the median over
rounds of the quotient of wall-clock times, with its quartiles. What is simulated has the costs of
the model's layers, measured alone on one rank; messages and updates cost nothing there. `apart` is
two ranks that train one model each: how far cores that share a memory slow each other down.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from lib import jobs, timing
from lib.flags import Parser
from lib.jobs import Job
from lib.pipeline.bench import Bench
from lib.pipeline.run import processes
from lib.pipeline.sections import SECTIONS
from lib.pipeline.tables import TABLES
from lib.timing import Row
from training import ONE_THREAD

from nnmpi import blas


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
    p = Parser(__doc__, "speed-up, schedules and memory")
    p.add_argument("--only", default=",".join(SECTIONS), help=f"which of {', '.join(SECTIONS)}")
    p.add_argument("--micro-batches", default="4,8,16", help="of the speed-up")
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--seconds", type=float, default=0.5, help="per case and round")
    p.add_argument("--timeout", type=float, default=120, help="seconds for one task of a job")
    p.add_argument("--small", action="store_true", help="small models: to see that it runs")
    a = p.parse_args(argv)
    wanted = a.only.split(",")
    for unknown in [name for name in wanted if name not in SECTIONS]:
        p.error(f"{unknown!r} is not a section; there are {', '.join(SECTIONS)}")
    a.only = [name for name in SECTIONS if name in wanted]
    words = a.micro_batches.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= 64 for word in words):
        p.error(f"--micro-batches {a.micro_batches} must be numbers from 1 to 64, such as 4,8,16")
    a.micro_batches = sorted({int(word) for word in words})
    if a.rounds < 1 or not 0 < a.seconds < float("inf"):
        p.error(f"--rounds {a.rounds} of {a.seconds:g} s are too short: try 21 of 0.5")
    p.check_outputs(a)
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    a = parse(argv)
    jobs.run("pipeline.py", lambda: measure(a))


def measure(a: argparse.Namespace) -> None:
    """Start the jobs, measure all sections, print and write the results."""
    os.environ.update(ONE_THREAD)
    blas.tune()
    facts = timing.machine()
    timing.warn_if_busy(facts)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    rows: list[Row] = []
    with ExitStack() as stack:
        jobs_of = {
            n: stack.enter_context(Job(f"the job of {n}", n, partial(processes, n), a.timeout))
            for n in (1, 2)
        }
        bench = Bench(jobs_of, a.micro_batches, a.rounds, a.seconds, a.small, a.timeout, facts)
        for name in a.only:
            found = SECTIONS[name](bench)
            if found:
                print(f"\n{TABLES[name](found)}", flush=True)
            rows += found
    timing.finish(a.json, rows)
    if a.plot:
        from lib.pipeline import plot

        plot.draw(rows, a.plot)
        print(f"plot written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()
