"""Runs the fuzzers for a time, prints their counts, and how to repeat each failure."""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

from fuzzers import FUZZERS  # noqa: E402
from fuzzing import Fault, tried  # noqa: E402

SLICE = 20.0  # seconds for one fuzzer at a time


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    p.add_argument("--seconds", type=float, default=3600.0, help="default: an hour")
    p.add_argument("--seed", type=int, default=0, help="of the first case; the next one has seed+1")
    p.add_argument("--cases", type=int, default=sys.maxsize, help="at most so many of each fuzzer")
    p.add_argument("--only", choices=FUZZERS, action="append", help="this fuzzer; may be repeated")
    return p


def main() -> int:
    options = parser().parse_args()
    names = options.only or list(FUZZERS)
    end = time.monotonic() + options.seconds
    seeds = dict.fromkeys(names, options.seed)
    counts = {name: Counter[str]() for name in names}
    try:
        while time.monotonic() < end and min(seeds.values()) - options.seed < options.cases:
            for name in names:
                until = min(end, time.monotonic() + SLICE)
                while time.monotonic() < until and seeds[name] - options.seed < options.cases:
                    counts[name].update(one(name, seeds[name]))
                    seeds[name] += 1
    except KeyboardInterrupt:
        pass
    return report(counts)


def one(name: str, seed: int) -> list[str]:
    """Tries a case; returns what to count."""
    with TemporaryDirectory() as folder:
        outcome = tried(FUZZERS[name], seed, Path(folder))
    if outcome.fault is None:
        return ["tried"]
    print(f"{outcome.fault}: scripts/soak --only {name} --seed {seed} --cases 1")
    print(f"    {outcome.what}".replace("\n", "\n    "), flush=True)
    return ["tried", outcome.fault]


def report(counts: dict[str, Counter[str]]) -> int:
    """Prints a table; the exit status is 1 if there was a fault."""
    columns = ("tried", *Fault)
    print(f"{'':16}" + "".join(f"{column:>9}" for column in columns))
    for name, found in counts.items():
        print(f"{name:16}" + "".join(f"{found[column]:9,}" for column in columns))
    print(f"peak memory of this process {getrusage(RUSAGE_SELF).ru_maxrss // 1024:,} MB")
    return int(any(found[fault] for found in counts.values() for fault in Fault))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
