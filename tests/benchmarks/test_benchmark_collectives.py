"""benchmarks/collectives.py: its rows, its plot, and its errors."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
from helpers.benchfiles import Import
from helpers.mpijob import run as mpirun

from nnmpi.run import network_fit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPT = str(BENCHMARKS / "collectives.py")
HAS_MATPLOTLIB, HAS_TORCH = (
    importlib.util.find_spec(name) is not None for name in ("matplotlib", "torch")
)
TINY = ("--sizes", "256,4KB", "--seconds", "0.01")
PLANS = {"ring", "tree", "ps", "p2p", "doubling", "halving", "hierarchical"}
ALL = PLANS | {"mpi", "shared", "auto", "window", "MPI_Allreduce"}
# One rank gets a wrong sum from one algorithm at one size.
WRONG = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from nnmpi.comm import Comm

right = Comm.all_reduce

def wrong(self, array, algorithm="auto"):
    right(self, array, algorithm)
    if algorithm == "tree" and self.rank == 1 and array.size == 1024:
        array[7] += 1

Comm.all_reduce = wrong
import collectives
collectives.main(["--sizes", "256,4KB", "--seconds", "0.01", "--algorithms", "ring,tree"])
"""


run = partial(mpirun, timeout=250)  # seconds; enough on a busy machine


def test_lines_are_fitted(module: Import) -> None:
    line = network_fit.line
    link = line([100, 1000, 1_000_000], [1.1e-6, 2e-6, 1.001e-3])
    assert link.alpha == pytest.approx(1e-6, rel=1e-6)
    assert link.beta == pytest.approx(1e-9, rel=1e-6)


def test_every_implementation_has_a_row_and_the_plot_is_written(
    tmp_path: Path,
) -> None:
    plot = ["--plot", str(tmp_path / "out.png")] if HAS_MATPLOTLIB else []
    ended = run(2, SCRIPT, *TINY, "--json", str(tmp_path / "out.json"), *plot)
    assert ended.status == 0, ended.err
    assert max(map(len, ended.out.splitlines())) <= 110
    rows = json.loads((tmp_path / "out.json").read_text())
    sums = [row for row in rows if row["case"] == "all_reduce"]
    found = {(row["algorithm"], row["bytes"]) for row in sums}
    wanted = {(name, n) for name in ALL for n in (256, 4096)}
    assert found <= wanted
    if found != wanted:  # a call took seconds, on a machine that was busy with something else
        assert "too slow to be timed" in ended.out
    for row in sums:
        assert row["benchmark"] == "collectives"
        assert row["ranks"] == 2
        assert row["seconds"] > 0
        assert row["ratio"] > 0
        assert row["against"] == "MPI_Allreduce"
        assert ("predicted_seconds" in row) == (row["algorithm"] in PLANS)
    (network,) = [row for row in rows if row["case"] == "network"]
    assert network["alpha"] == network["seconds"] >= 0  # the fit gives 0 on a busy machine
    if HAS_MATPLOTLIB:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_one_rank_and_a_few_names_only() -> None:
    ended = run(1, SCRIPT, *TINY, "--algorithms", "tree,auto")
    assert ended.status == 0, ended.err
    assert "tree" in ended.out
    assert "hierarchical" not in ended.out


@pytest.mark.long
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_gloo_is_timed_beside_the_others() -> None:
    ended = run(2, SCRIPT, *TINY, "--compare", "gloo", "--algorithms", "ring")
    assert ended.status == 0, ended.err
    assert "gloo" in ended.out


def test_a_wrong_sum_ends_the_run() -> None:
    ended = run(2, "-c", WRONG)
    assert ended.status == 1
    assert "wrong sum: tree at 4 KB on rank 1: element 7 is" in ended.err


def test_unusable_flags_end_the_job() -> None:
    ended = run(2, SCRIPT, "--sizes", "258")
    assert ended.status == 2
    assert ended.err.count("258 bytes are not a whole number of float32 values") == 1
    assert not ended.out


@pytest.mark.parametrize(
    ("module", "flags"), [("matplotlib", ("--plot", "x.png")), ("torch", ("--compare", "gloo"))]
)
def test_a_missing_extra_is_reported_before_measuring(module: str, flags: tuple[str, ...]) -> None:
    hidden = f"""
import importlib.util, sys
sys.modules['matplotlib.figure'] = None
sys.path.insert(0, {str(BENCHMARKS)!r})
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == {module!r} else find(name, *more)
import collectives
collectives.main({list(flags)!r})
"""
    ended = run(2, "-c", hidden)
    assert ended.status == 2
    assert "is not installed" in ended.err
    assert "pip install" in ended.err
    assert not ended.out


def test_sizes_are_read_and_named(module: Import) -> None:
    timing = module("lib.timing")
    for words in ("256 B", "4 KB", "64 MB", "1.5 MB", "2 GB"):
        assert timing.size_name(timing.size(words)) == words
    assert timing.size("256") == 256
    assert timing.size("4kb") == timing.size("4KiB") == timing.size("4k") == 4096
