"""Plants faults in a copy of nnmpi, one at a time, and says which of them the tests find.

For each fault the quick tests that reach its line run, those that reach the fewest lines first;
if none fails, those of scripts/test --rest. Of each kind it takes what fits into some seconds of
processor time. A test that fails without a fault too finds nothing: they are tried at the end.
Faults in lines that have changed since the record are not tried: no test of them is known.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

from choose_tests import costs_of, reached_in  # noqa: E402
from helpers.mutations import Mutation, sample  # noqa: E402
from helpers.selection import QUICK_CASES, Selection, quick_cases  # noqa: E402

MOST_TESTS = 400
"""How many tests run for a fault at most: arguments of one command."""

OPTIONS = ("-n", "0", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--timeout", "120")


class Result(NamedTuple):
    """What the tests make of a fault: `killed_by` names the first that fails, or is empty."""

    mutation: Mutation
    killed_by: str
    by_quick: bool
    reached_by: int
    tried: int


class Known(NamedTuple):
    """What a recorded run tells: of each line its tests, of each test its seconds and lines."""

    tests: dict[tuple[str, int], set[str]]
    costs: dict[str, float]
    lines: Counter[str]
    selection: Selection

    def reaching(self, mutation: Mutation) -> list[str]:
        """The tests that reach a fault, the most specific first."""
        last = mutation.line + mutation.old.count("\n")
        places = ((mutation.file, line) for line in range(mutation.line, last + 1))
        reaching = set[str]().union(*(self.tests.get(place, set()) for place in places))
        return sorted(reaching, key=lambda test: (self.lines[test], test))

    def is_quick(self, test: str) -> bool:
        """True of a test of scripts/test, False of one of scripts/test --rest."""
        name, _, case = test.partition("[")
        return self.selection.has(name, case[:-1]) if case else self.selection.has(name)

    def first(self, tests: Iterable[str], seconds: float) -> list[str]:
        """The first of these tests that fit into so many seconds."""
        found = list[str]()
        for test in tests:
            seconds -= self.costs.get(test, 0)
            if seconds > 0 and len(found) < MOST_TESTS:
                found.append(test)
        return found


Lines = dict[str, dict[int, int]]
"""Of a file the lines that are as they were in a commit: their numbers then, and now."""


def known(folder: Path, wanted: Lines, tests: set[str]) -> Known:
    """What the records in a folder tell of these lines, of tests that still exist."""
    found, lines = defaultdict[tuple[str, int], set[str]](set), Counter[str]()
    for test, path, bits in reached_in(folder):
        if test in tests:
            lines[test] += bits.bit_count()
            file = "nnmpi/" + path.rpartition("/nnmpi/")[2]
            for then, now in wanted.get(file, {}).items():
                if bits >> then & 1:
                    found[file, now].add(test)
    costly = quick_cases(QUICK_CASES.read_text(encoding="utf-8"))
    return Known(found, costs_of(folder), lines, Selection(costly, rest=False))


def lines_since(commit: str, files: Iterable[str]) -> Lines:
    """The lines of these files that are as they were in a commit."""
    return {file: _lines_since(commit, file) for file in set(files)}


def _lines_since(commit: str, file: str) -> dict[int, int]:
    command = ["git", "show", f"{commit}:{file}"]  # fails for a new file: no test is known
    shown = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    then = shown.stdout.splitlines()
    now = (ROOT / file).read_text(encoding="utf-8").splitlines()
    same = SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks()
    return {block.a + i + 1: block.b + i + 1 for block in same for i in range(block.size)}


class Tree:
    """A copy of the checkout, in which one fault at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in "nnmpi", "tests", "course", "docs", "scripts", "benchmarks", "examples":
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
        for path in ROOT.iterdir():
            if path.is_file() and path.name != ".git":
                shutil.copy2(path, folder)
        paths = f"{folder}{os.pathsep}{folder / 'tests'}"
        cache = str(folder / "pycache")
        self.variables = {**os.environ, "PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": cache}

    def failures(self, tests: Sequence[str], seconds: float, *options: str) -> list[str]:
        """Which of these tests fail, or what else shows a fault."""
        if not tests:
            return []
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, *options, *tests],
            cwd=self.root,
            env=self.variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=4 * seconds + 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return [f"no end with {tests[0]}"]
        if process.returncode == 0:
            return []
        found = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        ends = f"status {process.returncode}: {output.strip().splitlines()[-1]}"
        return [line.split(" ", 1)[1].split(" - ")[0] for line in found] or [ends]

    def result(self, mutation: Mutation, known: Known, seconds: float) -> Result:
        """What the tests make of a fault."""
        path = self.root / mutation.file
        source = path.read_bytes()
        path.write_bytes(mutation.applied(source))
        reaching, tried = known.reaching(mutation), 0
        try:
            for is_quick in True, False:
                tests = [test for test in reaching if known.is_quick(test) == is_quick]
                run = known.first(tests, seconds)
                tried += len(run)
                if failed := self.failures(run, seconds, "-x"):
                    return Result(mutation, failed[0], is_quick, len(reaching), tried)
        finally:
            path.write_bytes(source)
        return Result(mutation, "", False, len(reaching), tried)


def results(
    mutations: Iterable[Mutation], known: Known, seconds: float, jobs: int
) -> Iterator[Result]:
    """What the tests make of faults, tried in so many copies at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees = SimpleQueue[Tree]()
        for i in range(jobs):
            trees.put(Tree(_new(Path(folder, str(i)))))

        def tried(mutation: Mutation) -> Result:
            tree = trees.get()
            try:
                return tree.result(mutation, known, seconds)
            finally:
                trees.put(tree)

        found = list[Result]()
        for result in pool.map(tried, mutations):
            found.append(result)
            how = "killed" if result.killed_by else "SURVIVED"
            print(f"{how:9}{result.mutation.name}  {result.killed_by}", flush=True)
        killers = sorted({result.killed_by for result in found if "::" in result.killed_by})
        bad = trees.get().failures(killers, seconds * len(killers))
        for result in found:
            yield result._replace(killed_by="") if result.killed_by in bad else result


def _new(path: Path) -> Path:
    path.mkdir()
    return path


def existing_tests() -> set[str]:
    """The tests of scripts/test and scripts/test --rest."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", "tests"]
    output = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    return {line for line in output.splitlines() if "::" in line}


def table(found: Sequence[Result], key: str) -> Iterator[str]:
    """Lines of a table: the faults of each room or kind, and how many of them the tests find."""
    groups = defaultdict[str, list[Result]](list)
    for result in found:
        groups[getattr(result.mutation, key)].append(result)
    for name, group in [*sorted(groups.items()), ("all", [*found])]:
        full = sum(bool(result.killed_by) for result in group)
        quick = sum(bool(result.killed_by) and result.by_quick for result in group)
        yield f"{name:14}{len(group):8}{full:14}{quick:14}"


def main() -> None:
    """Tries the faults, and prints tables and what survives."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("folder", type=Path, help="what scripts/choose_tests has recorded")
    p.add_argument("--count", type=int, default=300, help="how many faults")
    p.add_argument("--jobs", type=int, default=2, help="how many at a time")
    p.add_argument("--seconds", type=float, default=40, help="processor time of tests for a fault")
    p.add_argument("--out", type=Path, help="a file for results, a JSON object a line")
    options = p.parse_args()
    drawn = sample(options.count, ROOT)
    commit = (options.folder / "commit").read_text(encoding="utf-8").strip()
    lines = lines_since(commit, (each.file for each in drawn))
    mutations = [each for each in drawn if each.line in lines[each.file].values()]
    print(f"{len(drawn) - len(mutations)} faults are in lines that have changed since the record")
    tests = known(options.folder, lines, existing_tests())
    found = [*results(mutations, tests, options.seconds, options.jobs)]
    if options.out:
        rows = (result._asdict() | {"mutation": result.mutation.name} for result in found)
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for key in "room", "kind":
        print(f"\n{key:14}{'faults':>8}{'found by all':>14}{'quick tests':>14}")
        print("\n".join(table(found, key)))
    print("\nnot found:")
    for result in found:
        if not result.killed_by:
            print(f"{result.mutation.name}  ({result.tried} of {result.reached_by} tests)")


if __name__ == "__main__":
    main()
