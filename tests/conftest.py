"""The sample of cases that runs, and fixtures that many files share."""

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import MODULES, Command, Completed
from helpers.cost import Costs
from helpers.ends_job import pytest_runtest_logreport as pytest_runtest_logreport
from helpers.sample import EVERY_CASE, is_of_part
from helpers.selection import Selection, selection

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

SELECTION = pytest.StashKey[Selection]()
NONE_RUNS = pytest.StashKey[set[str]]()
"""Tests of which no case runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rest", action="store_true", help="the tests that take long, alone")
    parser.addoption("--all", action="store_true", help="no samples: every case of every test")
    parser.addoption("--part", metavar="I/N", default="1/1", help="every N-th test, from the I-th")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", LONG)
    config.addinivalue_line("markers", ONE_IN)
    config.addinivalue_line("markers", ALL_ADD_ONS)
    config.stash[SELECTION] = selection(config)
    config.stash[NONE_RUNS] = set()
    config.pluginmanager.register(Costs())
    if config.getoption("--all"):
        os.environ[EVERY_CASE] = "1"  # also of ranks that tests start


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector waits, and looks at none of it later: what is collected stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Leaves out cases before pytest makes them: to make all of them takes longer than to import
    the files of tests."""
    yield
    cases = metafunc._calls  # pytest has no public name for what `parametrize` has made
    chosen = metafunc.config.stash[SELECTION].of(metafunc.definition, cases)
    if cases and not chosen:  # one case stays: without any, pytest would look for fixtures
        metafunc.config.stash[NONE_RUNS].add(metafunc.definition.nodeid)
    metafunc._calls[:] = chosen or cases[:1]


@pytest.hookimpl(trylast=True)  # of the tests that -k and -m choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, none_runs = config.stash[SELECTION], config.stash[NONE_RUNS]

    def runs(item: pytest.Item) -> bool:
        test, bracket, _ = item.nodeid.partition("[")
        if not is_of_part(item.nodeid, config.getoption("--part")):
            return False
        if bracket:
            return test not in none_runs
        return (chosen.all or not item.get_closest_marker("long")) and chosen.has(item.nodeid)

    items[:] = sorted(filter(runs, items), key=lambda item: item.path.name not in FIRST)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Says what was left out and how to run it, behind all else that pytest prints."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")  # processes of xdist have none
    if reporter and not config.stash[SELECTION].all:
        reporter.write_line(config.stash[SELECTION].left_out)


@pytest.fixture(autouse=True, scope="module")
def _no_old_objects() -> None:
    """The garbage collector does not look again at what is there before a file of tests.

    A Trainer collects all garbage when it is rearranged: among the objects of thousands of tests
    that would take half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _first_draws() -> Iterator[None]:
    """A test draws the weights of a new process, whatever tests ran before it in this one."""
    with nnmpi.seeded(0):
        yield


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
