"""Models of sequences on one core and on ranks: python benchmarks/language.py [--json out.json]

    steps     a training step of an LSTM and of transformers beside PyTorch and JAX, on one core;
              subjects and ratios are those of benchmarks/training.py
    memory    of causal attention, forward and back, at 1,024 to 8,192 positions
    generation  tokens a second with a cache of keys and values, beside PyTorch (T), on one core
    weak      two ranks by dp, tp, tp with sequence parallelism and pp over one rank, in float32 and
              in bfloat16, with twice the samples, and two ranks that train one model each (apart)
    context   one sequence of 4,096 positions, cut over two ranks by --cp, over one rank

Every rank has one BLAS thread, one rank alone too. Ranks sleep between their turns. What is
compared runs in the same rounds: a ratio is the median over rounds of the quotient of processor
time (steps), or of tokens or samples a second (the others), with its quartiles.
"""

import argparse
from collections.abc import Sequence

from lib.language.plot import PANELS
from lib.language.sections import SECTIONS
from lib.language.tables import TABLES
from lib.study import Bench, Study
from lib.timing import Row


def bench(a: argparse.Namespace, facts: Row) -> Bench:
    return Bench(a.rounds, a.seconds, a.small, a.timeout, facts)


STUDY = Study("language.py", bench, SECTIONS, TABLES, PANELS, "1 and 2 ranks")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags."""
    return STUDY.parse(STUDY.parser(__doc__, "weak scaling", 5, 0.5, 600), argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    STUDY.run(parse(argv))


if __name__ == "__main__":
    main()
