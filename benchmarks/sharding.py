"""Sharded models beside theory: python benchmarks/sharding.py [--json out.json] [--plot out.png]

    memory   bytes that a rank holds for parameters, gradients and Adam's state under each stage of
             ZeRO and with `shared`, the most in a step, and what is resident; 1, 2 and 4 ranks, 50
             million parameters
    bytes    sent by a rank in a step: stages of ZeRO with 1 and 4 micro-batches, tp and pp
    time     a step of ZeRO, `shared` and tp on 2 ranks, of combinations on 4 and 8, beside dp
    weak     an MLP of width H on one rank beside one of width 2H on two tensor-parallel ranks
    halo     one large image on one rank, and cut by rows over two

Every rank has one BLAS thread, one rank alone too. Ranks sleep between their turns. What is
compared runs in the same rounds: a ratio is the median over rounds of the quotient of wall-clock
times, with its quartiles. Bytes are counted by the ledgers of communicators, memory by tracemalloc,
and windows once a node. Resident is the PSS that the trainer and its steps add to the process: a
page that several ranks have counts in equal parts on each. `apart` and `half an image` are two
ranks that compute without messages: how far cores that share a memory slow each other down.
"""

import argparse
from collections.abc import Sequence

from lib.sharding.bench import Bench
from lib.sharding.plot import PANELS
from lib.sharding.sections import SECTIONS
from lib.sharding.tables import TABLES
from lib.study import Study
from lib.timing import Row


def bench(a: argparse.Namespace, facts: Row) -> Bench:
    return Bench(a.rounds, a.seconds, a.small, a.timeout, facts)


STUDY = Study("sharding.py", bench, SECTIONS, TABLES, PANELS, "1 to 8 ranks")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags."""
    return STUDY.parse(STUDY.parser(__doc__, "memory, bytes and time", 9, 0.4, 180), argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    STUDY.run(parse(argv))


if __name__ == "__main__":
    main()
