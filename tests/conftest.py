"""The sample of cases that runs, and fixtures that many files share."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import MODULES, Command, Completed
from helpers.ends_job import pytest_runtest_logreport as pytest_runtest_logreport
from helpers.sample import EVERY_CASE, sampled

import nnmpi
from nnmpi import train
from nnmpi.arrays import blas
from nnmpi.nn.models import iris_mlp

# The same BLAS kernels in this process and in all that tests start, whether or not they call
# blas.tune(): tests compare bits.
blas.tune()
if blas.core() != "unknown":
    os.environ.setdefault("OPENBLAS_CORETYPE", blas.core())

# The collector's full passes over live objects took up to 6% of the time of tests. They come
# less often here; a Trainer that is rearranged and the beginning of a file still make one each.
gc.set_threshold(2_000, 10, 50)

LONG = "long: runs with --all only"
ONE_IN = "one_in(n): of the cases of the test one in n runs without --all, and each value of few"
ALL_ADD_ONS = "all_add_ons: about all add-ons together; scripts/without leaves it out"
QUICK = "quick: runs with --quick only, in the place of longer tests"
FIRST = (
    "test_mpi_jobs.py",
    "test_native_build.py",
    "test_site.py",
    "test_extending.py",
    "test_outside.py",
    "test_ranks.py",
    "test_fuzzers.py",
)
"""The files of the longest tests, which begin first: other processes take the short ones."""

STARTS_PROCESSES = ("import subprocess", "helpers.mpijob", "import operators")
LEFT_OUT = pytest.StashKey[int]()
"""How many tests are long and do not run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="no samples: every case of every test")
    parser.addoption("--quick", action="store_true", help="some cases of tests in this process")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", LONG)
    config.addinivalue_line("markers", ONE_IN)
    config.addinivalue_line("markers", QUICK)
    config.addinivalue_line("markers", ALL_ADD_ONS)
    if config.getoption("--all"):
        os.environ[EVERY_CASE] = "1"  # also of ranks that tests start


@pytest.hookimpl(trylast=True)  # of the tests that -k and -m choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        collected = len(items)
        items[:] = sampled([item for item in items if not item.get_closest_marker("long")])
        config.stash[LEFT_OUT] = collected - len(items)
    others = [item for item in items if not item.get_closest_marker("quick")]
    if config.getoption("--quick"):
        quick = [item for item in items if item.get_closest_marker("quick")]
        items[:] = [*quick, *some_cases(others)]
    else:
        items[:] = others
    items.sort(key=lambda item: item.path.name not in FIRST)


def some_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """One case of each test that starts no process, and of many one in thirty."""
    texts = {path: path.read_text(encoding="utf-8") for path in {item.path for item in items}}
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        is_long = item.get_closest_marker("long") or item.get_closest_marker("mpi")
        if not is_long and not any(text in texts[item.path] for text in STARTS_PROCESSES):
            test, _, case = item.name.partition("[")
            row = case.partition(": ")[0] if ": " in case else ""  # of the table of laws
            cases.setdefault((item.path, test + row), []).append(item)
    found = []
    for of_test in cases.values():
        n = 1 + len(of_test) // 30
        found += of_test[:: max(1, len(of_test) // n)][:n]
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of xdist, of which each collects all tests, tells the one that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Says how many tests were left out, behind all else that pytest prints."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")  # processes of xdist have none
    count = config.stash.get(LEFT_OUT, 0)
    if reporter and count:
        reporter.write_line(
            f"tests left out: {count:,} (more cases of tests that ran, and long ones); "
            "scripts/test --all runs every test"
        )


@pytest.fixture(autouse=True, scope="module")
def _no_old_objects() -> None:
    """The garbage collector does not look again at what is there before a file of tests.

    A Trainer collects all garbage when it is rearranged: among the objects of thousands of tests
    that would take half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_problems_of_the_emulator() -> Iterator[None]:
    """A test on the emulated device fails where that has found a problem."""
    yield
    if machine := sys.modules.get("emulator.machine"):
        assert not machine.remaining_problems()


@pytest.fixture
def is_sample(request: pytest.FixtureRequest) -> bool:
    """Whether a test that draws its own cases is to draw few of them: not with --all."""
    return not request.config.getoption("--all")


@pytest.fixture
def seeds() -> Callable[[int], range]:
    """Of so many random draws the seeds: with --all of all of them, else of a third."""
    return lambda n: range(n if EVERY_CASE in os.environ else -(-n // 3))


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs the command with --json, in a new directory with the files that `write_files` makes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_files(tmp_path)

    def run(*arguments: str) -> Completed:
        try:
            status: object = train.main(("--json", *arguments))
        except SystemExit as exit:
            status = exit.code
        return Completed(status, *capsys.readouterr())

    yield run
    for name in ("own_package", *(f"own_package.{module}" for module in MODULES)):
        sys.modules.pop(name, None)


def write_files(folder: Path) -> None:
    (folder / "own_package").mkdir()
    (folder / "own_package" / "__init__.py").write_text("")
    for name, code in MODULES.items():
        (folder / "own_package" / f"{name}.py").write_text(code)
    x, y = np.random.default_rng(0).standard_normal((40, 4)), np.arange(40) % 3
    np.savez(folder / "own.npz", x=x + y[:, None], y=y)
    np.savez(folder / "no-labels.npz", x=x)
    np.savez(folder / "words.npz", x=np.full((3, 2), "a"), y=np.arange(3))
    (folder / "broken.npz").write_bytes((folder / "own.npz").read_bytes()[:300])
    nnmpi.save(iris_mlp().state_dict(), folder / "iris.safetensors")
    whole = (folder / "iris.safetensors").read_bytes()
    (folder / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "foreign.safetensors").write_text("PK this is another kind of file")
