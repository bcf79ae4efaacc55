"""The command behind scripts/explore: judges the cases of seeds, and shrinks one that fails."""

import argparse
import gc
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from helpers.training.pipelined import digits

from simulation.case import Case
from simulation.draw import drawn_case
from simulation.exhaustive import deaths, ways
from simulation.layouts import EXHAUSTED, LAYOUTS
from simulation.mutant_table import MUTANTS
from simulation.mutants import first_kill
from simulation.scheduler import SimulatedScheduler
from simulation.shrink import shrunk
from simulation.verdict import Verdict, verdict

SHOWN = 30  # operations of each rank
COLLECTED = 50  # cases between two collections of garbage


def main() -> int:
    options = _options()
    digits()
    gc.freeze()  # what all cases share is not looked at again
    if options.mutants is not None:
        return _print_mutants(options.mutants, options.seeds)
    if options.exhaustive is not None:
        return _exhaust(options.exhaustive or [*EXHAUSTED], *options.part)
    return _explore(_cases(options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/explore", description=__doc__)
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--minutes", type=float, help="seeds for so long, instead of a number")
    parser.add_argument(
        "--layout", action="append", choices=list(LAYOUTS), help="only this layout (repeatable)"
    )
    parser.add_argument(
        "--exhaustive",
        nargs="*",
        choices=list(LAYOUTS),
        metavar="LAYOUT",
        help="one death at each operation of each rank, noticed in each way, by default in all of "
        + ", ".join(EXHAUSTED),
    )
    parser.add_argument(
        "--part",
        type=part,
        default=(1, 1),
        metavar="I/N",
        help="of --exhaustive only every N-th case, from the I-th on",
    )
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="find the defects of mutants, by default of all",
    )
    return parser.parse_args()


def part(text: str) -> tuple[int, int]:
    """The numbers of "1/2"."""
    first, of = map(int, text.split("/"))
    if not 1 <= first <= of:
        raise ValueError(f"part {first} of {of}")
    return first, of


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    names = options.layout or ()
    if options.seed is not None:
        yield drawn_case(options.seed, names)
    elif options.minutes:
        end = time.monotonic() + 60 * options.minutes
        for seed in count(options.first):
            if time.monotonic() > end:
                return
            yield drawn_case(seed, names)
    else:
        for seed in range(options.first, options.first + options.seeds):
            yield drawn_case(seed, names)


def _exhaust(names: Sequence[str], first: int, of: int) -> int:
    """Judges each death of these layouts, or one in so many; prints the counts of each way."""
    is_bad = 0
    for name in names:
        for way in ways(name):
            is_bad |= _explore(deaths(name, way)[first - 1 :: of], f"{name}, {way}: ")
    return is_bad


def _explore(cases: Iterable[Case], what: str = "") -> int:
    """Judges cases; prints each that fails, and the counts. Returns 1 if one fails."""
    kinds, turns, began, is_bad = Counter[str](), 0, time.process_time(), False
    for number, case in enumerate(cases, 1):
        result = verdict(case)
        kinds[result.kind] += 1
        turns += len(result.scheduler.trace)
        if result.is_bad:
            is_bad = True
            _print_failure(case, result)
        if number % COLLECTED == 0:
            gc.collect()
    seconds = time.process_time() - began
    counts = ", ".join(f"{kind} {n:,}" for kind, n in sorted(kinds.items()))
    print(
        f"{what}{kinds.total():,} cases: {counts}; {turns:,} turns, {seconds:,.0f} s of processor",
        flush=True,
    )
    return int(is_bad)


def _print_failure(case: Case, failed: Verdict) -> None:
    """Prints what fails, the last operations of each rank, and a script that repeats the smallest
    case found."""
    print(f"seed {case.seed}, {case.layout}: {failed.kind}: {failed.text}", flush=True)
    smallest = shrunk(case, failed)
    print("\n".join(last_operations(verdict(smallest).scheduler)))
    print(script(smallest), flush=True)


def last_operations(scheduler: SimulatedScheduler) -> list[str]:
    """The last operations of each rank, and of the network, a line each, in order."""
    of_rank = defaultdict[int, list[int]](list)
    for turn, taken in enumerate(scheduler.trace):
        of_rank[taken.rank].append(turn)
    kept = sorted(turn for turns in of_rank.values() for turn in turns[-SHOWN:])
    taken = ((turn, scheduler.trace[turn]) for turn in kept)
    return [
        f"  {turn:6}  {'network' if t.rank < 0 else f'rank {t.rank}'}  {t.what}"
        for turn, t in taken
    ]


def script(case: Case) -> str:
    """A program that repeats a case, with what is not as by default."""
    plain = Case(case.layout)._asdict()
    given = {name: x for name, x in case._asdict().items() if name == "layout" or x != plain[name]}
    return (
        "from simulation.case import Case, Fault, Sleep\n"
        "from simulation.verdict import verdict\n"
        f"print(verdict(Case({', '.join(f'{name}={x!r}' for name, x in given.items())})))"
    )


def _print_mutants(names: list[str], seeds: int) -> int:
    """Prints by which seed each mutant is found, or how many cases have reached its text in vain.
    Returns 1 if one is not found, although some case or test finds it."""
    survivors = 0
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        search = first_kill(mutant, seeds)
        survivors += search.case is None and not mutant.equal
        survives = f"survives {search.tried} cases, {search.reached} of which reach it"
        print(f"{mutant.name}: {search.case or survives}", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
