"""Pipelines beside theory: python benchmarks/pipeline.py [--json out.json] [--plot out.png]

    speed-up   two ranks over one that computes the same micro-batches: an MLP and a CNN whose
               halves cost the same, beside p m / (m + p - 1), and mnist-cnn beside its simulation
    schedules  zb-h1 over 1f1b and interleaved over gpipe at few micro-batches, then all at 8
    memory     activations of the first stage under 1f1b and gpipe, 16 micro-batches
    recompute  one rank that runs forward passes again: its speed and its activations
    bytes      sent in a step by a pipeline and by data parallelism, of an MLP with large layers
    network    their seconds on the emulated cluster of scripts/cluster, at 1 Gbit/s; needs root

Every rank has one BLAS thread, one rank alone too. Ranks sleep between their turns. What is
compared runs in the same rounds, pairs back to back: a ratio is the median over rounds of the
quotient of wall-clock times, with its quartiles. What is simulated has the costs of the model's
layers, measured alone on one rank; messages and updates cost nothing there. `apart` is two ranks
that train one model each: how far cores that share a memory slow each other down.
"""

import argparse
from collections.abc import Sequence

from lib.pipeline.bench import Bench
from lib.pipeline.plot import PANELS
from lib.pipeline.sections import SECTIONS
from lib.pipeline.tables import TABLES
from lib.study import Study
from lib.timing import Row


def bench(a: argparse.Namespace, facts: Row) -> Bench:
    return Bench(a.rounds, a.seconds, a.small, a.timeout, facts, a.micro_batches)


STUDY = Study("pipeline.py", bench, SECTIONS, TABLES, PANELS, "2 ranks")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags."""
    p = STUDY.parser(__doc__, "speed-up, schedules and memory", 21, 0.5, 120)
    p.add_argument("--micro-batches", default="4,8,16", help="of the speed-up")
    a = STUDY.parse(p, argv)
    words = a.micro_batches.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= 64 for word in words):
        p.error(f"--micro-batches {a.micro_batches} must be numbers from 1 to 64, such as 4,8,16")
    a.micro_batches = sorted({int(word) for word in words})
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    STUDY.run(parse(argv))


if __name__ == "__main__":
    main()
