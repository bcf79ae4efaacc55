"""Writes tests/quick_cases.txt from a folder of records: scripts/choose_tests runs this.

Cheap cases are quick tests as they are. Of the others those become quick tests that reach lines of
nnmpi which no chosen test reaches, the most lines for its processor time first; and for each test,
law, and name in a table of nnmpi, of which all cases are dearer, the cheapest case. What takes more
than a test may, is left to scripts/test --rest, with the others.
"""

import json
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from helpers.cost import TEST  # noqa: E402
from helpers.laws import table as laws_of  # noqa: E402
from helpers.selection import ALONE, QUICK_CASES  # noqa: E402

from nnmpi.collectives.algorithms import ALGORITHMS  # noqa: E402
from nnmpi.data import DATASETS  # noqa: E402
from nnmpi.nn.models import MODELS  # noqa: E402
from nnmpi.schedules.pipeline import SCHEDULES  # noqa: E402

CHEAP = 0.05
"""Seconds of processor time up to which a case is a quick test whatever it reaches."""

ALWAYS = {"tests/project/test_mpi_jobs.py::test_laws_hold_over_mpi[mpi, 4 ranks]"}
"""Quick tests whatever they take: the laws over MPI."""

SHARED = {
    "tests/examples/test_examples.py::test_an_example_on_two_ranks",
    "tests/run/command/test_train_mpi.py::test_an_error_is_a_line_of_one_rank",
}
"""Tests whose cases share one job, which the first case starts: any of them alone takes as long."""

LAWS = "tests/laws/test_laws.py::test_law", "tests/laws/test_laws_of_state.py::test_law"
NAMES = sorted({*ALGORITHMS, *SCHEDULES, *MODELS, *DATASETS})

FINDERS = {
    "tests/addons/language/test_tokens.py::test_the_file_is_the_same_for_any_number_of_ranks[tokens]",
    "tests/addons/torchlike/torch_files/test_torch_files.py::"
    "test_mutations_raise_or_give_values[its pickle-new]",
    "tests/laws/test_laws.py::test_law[comm: all_reduce_has_the_bits_of_its_algorithm 5]",
    "tests/addons/recovery/test_backup.py::"
    "test_without_a_number_the_cost_of_one_says_when_the_next_is_due[1000s-6]",
    "tests/addons/planning/test_repeated.py::test_equal_parts_are_what_each_is_alone[tied, pp]",
    "tests/strict/test_strict_budgets.py::test_a_step_takes_no_more_than_its_budget[LSTM-float16]",
    "tests/addons/torchlike/utils/test_without_effect.py::"
    "test_it_is_said_once[settings of nnmpi.backends change nothing]",
}
"""Tests of at most a second that have found faults of scripts/mutants which no quick test found."""

MOST_LINES = 4096
"""More than any file of nnmpi has lines."""

HEAD = """\
# Tests that take long: those of their cases with a + are quick tests, which scripts/test runs, or
# else all but those with a -. The others run with scripts/test --rest.
# Made by scripts/choose_tests; tests/helpers/selection.py reads it.
"""

REACHED = """select context.context, file.path, line_bits.numbits from line_bits
join context on context.id = line_bits.context_id join file on file.id = line_bits.file_id"""
"""Reads what coverage has noted: of a test and a file, a bit for each line that is reached."""


def costs_of(folder: Path) -> dict[str, float]:
    """The processor time of each test, in seconds."""
    lines = (line for file in folder.glob("costs-*") for line in file.open(encoding="utf-8"))
    costs: dict[str, float] = dict(map(json.loads, lines))
    for shared in SHARED:
        cases = [test for test in costs if test.partition("[")[0] == shared]
        costs |= dict.fromkeys(cases, max(map(costs.__getitem__, cases)))
    return costs


def reached_in(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Of each test and each file that it or a process that it starts reaches, a bit for each line;
    with the test "" those that no test alone reaches, which are those of imports."""
    for database in folder.glob("lines*"):
        for context, path, bits in sqlite3.connect(database).execute(REACHED):
            yield context.removesuffix(" (call)"), path, int.from_bytes(bits, "little")


def lines_of(folder: Path) -> dict[str, int]:
    """The lines of nnmpi that each test reaches, a bit for each of each file."""
    found, files = defaultdict[str, int](int), dict[str, int]()
    for test, path, bits in reached_in(folder):
        found[test] |= bits << MOST_LINES * files.setdefault(path, len(files))
    return found


def parts_of(test: str) -> set[str]:
    """What is in some quick test: a test, a law, and for each file the names of tables."""
    function, _, case = test.partition("[")
    if function in LAWS:
        return {law_of(case.rpartition(" ")[0])}
    file = function.partition("::")[0]
    return {function, *(f"{file} {name}" for name in NAMES if re.search(rf"\b{name}\b", case))}


def law_of(row: str) -> str:
    """The law that a row of the table of laws tries: the row is named "kind: law"."""
    return f"a law: {row.partition(': ')[2]}"


def chosen(costs: dict[str, float], lines: dict[str, int]) -> set[str]:
    """The quick tests."""
    quick = {test for test, seconds in costs.items() if seconds <= CHEAP} | ALWAYS | FINDERS
    reached = lines.get("", 0)
    for test in quick:
        reached |= lines.get(test, 0)
    may = {test for test, seconds in costs.items() if seconds <= TEST}
    heap = [(-lines[test].bit_count() / costs[test], test) for test in may - quick if test in lines]
    heapify(heap)
    while heap:  # what a test adds only falls: that of the first one is computed anew
        _, test = heap[0]
        adds = (lines[test] & ~reached).bit_count() / costs[test]
        if not adds:
            heappop(heap)
        elif heap[0] == (first := (-adds, test)):
            quick.add(test)
            reached |= lines[test]
        else:
            heapreplace(heap, first)
    seen = set().union(*map(parts_of, quick), (law_of(row) for row, _, _ in laws_of("mpi", 4)))
    for test in sorted(may - quick, key=lambda test: (costs[test], test)):
        if not parts_of(test) <= seen:
            quick.add(test)
            seen |= parts_of(test)
    return quick


def table(costs: dict[str, float], quick: set[str]) -> str:
    """The text of quick_cases.txt: of a test that has cases of both kinds it lists the fewer."""
    cases = defaultdict[str, dict[bool, list[str]]](lambda: {True: [], False: []})
    for case in sorted(costs):
        test, _, name = case.partition("[")
        cases[test][case in quick].append(name[:-1] or ALONE)
    lines = list[str]()
    for test, of in cases.items():
        if of[False]:
            sign, listed = ("+", of[True]) if len(of[True]) < len(of[False]) else ("-", of[False])
            lines += [test, *(f"    {sign} {case}" for case in listed)]
    return HEAD + "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Chooses, writes the table, and prints what the two parts cost."""
    folder = Path(sys.argv[1])
    costs = costs_of(folder)
    lines = lines_of(folder)
    quick = chosen(costs, lines)
    note = "" if lines else "# Chosen by processor time alone: the run has noted no lines.\n"
    QUICK_CASES.write_text(table(costs, quick).replace(HEAD, HEAD + note), encoding="utf-8")
    for name, tests in ("quick", quick), ("rest", costs.keys() - quick):
        seconds = sum(costs[test] for test in tests)
        print(f"{name}: {len(tests):,} tests, {seconds:,.0f} s of processor time")


if __name__ == "__main__":
    main()
