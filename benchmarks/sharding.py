"""Sharded models beside theory: python benchmarks/sharding.py [--json out.json] [--plot out.png]

    memory   bytes that a rank holds for parameters, gradients and Adam's state under each stage of
             ZeRO and with `shared`, and the most in a step; 1, 2 and 4 ranks, 50 million parameters
    bytes    sent by a rank in a step: stages of ZeRO with 1 and 4 micro-batches, tp and pp
    time     a step of ZeRO, `shared` and tp on 2 ranks, of combinations on 4 and 8, beside dp
    weak     an MLP of width H on one rank beside one of width 2H on two tensor-parallel ranks
    halo     one large image on one rank, and cut by rows over two
    summa    two products on a grid of 2 x 2 ranks beside a column and a row layer on 4; also on the
             emulated cluster of scripts/cluster, which needs root

Every rank has one BLAS thread, one rank alone too. Ranks are started once and sleep between their
turns. What is compared runs in the same rounds: a ratio is the median over rounds of the quotient
of wall-clock times, with its quartiles. Bytes are counted by the ledgers of communicators, memory
by tracemalloc, and windows once a node. `apart` and `half an image` are two ranks that compute
without messages: how far cores that share a memory slow each other down.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from lib import jobs, timing
from lib.flags import Parser
from lib.sharding.bench import Bench
from lib.sharding.sections import SECTIONS
from lib.sharding.tables import TABLES
from lib.timing import Row
from training import ONE_THREAD

from nnmpi import blas


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
    p = Parser(__doc__, "memory, bytes and time")
    p.add_argument("--only", default=",".join(SECTIONS), help=f"which of {', '.join(SECTIONS)}")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--seconds", type=float, default=0.4, help="per case and round")
    p.add_argument("--timeout", type=float, default=180, help="seconds for one task of a job")
    p.add_argument("--small", action="store_true", help="small models: to see that it runs")
    a = p.parse_args(argv)
    wanted = a.only.split(",")
    for unknown in [name for name in wanted if name not in SECTIONS]:
        p.error(f"{unknown!r} is not a section; there are {', '.join(SECTIONS)}")
    a.only = [name for name in SECTIONS if name in wanted]
    if a.rounds < 1 or not 0 < a.seconds < float("inf"):
        p.error(f"--rounds {a.rounds} of {a.seconds:g} s are too short: try 9 of 0.4")
    p.check_outputs(a)
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    a = parse(argv)
    jobs.run("sharding.py", lambda: measure(a))


def measure(a: argparse.Namespace) -> None:
    """Measure all sections, print and write the results."""
    os.environ.update(ONE_THREAD)
    blas.tune()
    facts = timing.machine()
    timing.warn_if_busy(facts)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    bench, rows = Bench(a.rounds, a.seconds, a.small, a.timeout, facts), list[Row]()
    for name in a.only:
        found = SECTIONS[name](bench)
        print(f"\n{TABLES[name](found)}", flush=True)
        rows += found
    timing.finish(a.json, rows)
    if a.plot:
        from lib.sharding import plot

        plot.draw(rows, a.plot)
        print(f"plot written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()
