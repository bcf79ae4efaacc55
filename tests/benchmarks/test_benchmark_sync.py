"""benchmarks/sync.py: what theory says, what becomes of figures, and that a job runs."""

import importlib
import importlib.util
import json
import math
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
from benchfiles import BENCHMARKS, Import
from mpijob import run

SCRIPT = str(BENCHMARKS / "sync.py")
TINY = ("--steps", "12", "--repeats", "1", "--base", "1", "--batch", "6")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def takes(w: int, step: int) -> float:
    return 5.0 if (7 * w + 3 * step) % 10 == 0 else 1.0


def test_bsp_waits_for_the_slowest_of_each_step(module: Import) -> None:
    came = module("paces").paced(0, takes, 4, 4 * 50)
    assert came.times[-1] == sum(max(takes(w, step) for w in range(4)) for step in range(50))


def test_asp_waits_for_nobody(module: Import) -> None:
    came = module("paces").paced(math.inf, takes, 4, 4 * 50)
    assert came.times == sorted(came.times)
    assert len(came.times) == 200
    each = [[sum(takes(w, s) for s in range(step + 1)) for step in range(90)] for w in range(4)]
    assert came.times == sorted(t for times in each for t in times)[:200]


def test_theory_where_one_is_three_times_as_slow(module: Import) -> None:
    paces = module("paces")
    slow, modes = paces.CASES["slow"], paces.MODES
    bsp, ssp, asp = (paces.expected(slow, modes[m], 4, 300, 0) for m in ("bsp", "ssp3", "asp"))
    cold = 4 * 75
    assert bsp.seconds(cold) == 3 * 225
    assert bsp.seconds(cold) / asp.seconds(cold) == pytest.approx(2.5, rel=0.02)
    assert bsp.seconds(cold) / ssp.seconds(cold) == pytest.approx(1, rel=0.02)
    assert bsp.mean_staleness == 0
    assert asp.mean_staleness == pytest.approx(3, rel=0.02)


def test_ssp_is_as_far_ahead_as_it_may_be(module: Import) -> None:
    """Two workers, one of which never comes back: the other makes the bound and one more."""
    paces = module("paces")
    for bound in (1, 3, 10):
        came = paces.paced(bound, lambda w, _: 1.0 if w else 1e3, 2, 40)
        assert sum(t < 1e3 for t in came.times) == bound + 1


def test_figures_are_medians_over_repeats(module: Import) -> None:
    sync, parts, paces = module("sync"), module("sync_run"), module("paces")

    def ran(seconds: float, **staleness: int) -> object:
        counts = Counter({int(s[1:]): n for s, n in staleness.items()})
        return parts.Ran(100, seconds, 0.9, counts)

    def entry(case: str, mode: str) -> object:
        return parts.Entry(paces.CASES[case], paces.MODES[mode])

    runs = {
        entry("none", "bsp"): [ran(1), ran(2), ran(3)],
        entry("slow", "bsp"): [ran(4), ran(4), ran(6)],
        entry("slow", "asp"): [ran(2, s0=1, s4=3), ran(1, s2=2), ran(6, s1=5)],
    }
    a = Namespace(steps=40, batch=64)
    alike, bsp, asp = sync.rows_of(runs, 4, a, {"cores": 2})
    assert (asp["ratio"], asp["ratio_least"], asp["ratio_most"]) == (2, 1, 4)
    assert asp["ratio_in_theory"] == pytest.approx(2.5, rel=0.05)
    assert (asp["mean_staleness"], asp["largest_staleness"]) == (2, 4)
    assert asp["goal"] == 1.5
    assert "over_no_straggler" not in asp
    assert bsp["over_no_straggler"] == 0.5
    assert bsp["over_no_straggler_in_theory"] == pytest.approx(1 / 3)
    assert alike["samples_per_second"] == 50
    assert alike["seconds"] == 64 / 50


def test_all_have_rows_and_a_picture(tmp_path: Path) -> None:
    flags = ["--json", str(tmp_path / "out.json")]
    flags += ["--plot", str(tmp_path / "out.png")] if HAS_MATPLOTLIB else []
    told = run(3, SCRIPT, *TINY, "--modes", "bsp,allreduce,ssp1,asp", *flags)
    assert told.status == 0, told.err
    rows = json.loads((tmp_path / "out.json").read_text())
    ways = {("bsp", "bsp", 0, 3), ("all-reduce", "bsp", 0, 2), ("ssp 1", "ssp", 1, 3)}
    ways |= {("asp", "asp", 0, 3)}
    found = {(r["case"], r["subject"], r["sync"], r["staleness"], r["ranks"]) for r in rows}
    assert found == {(case, *way) for case in ("none", "random", "one slow") for way in ways}
    assert len(rows) == len(found)
    for row in rows:
        assert row["benchmark"] == "sync"
        assert row["samples_per_second"] > 0
        assert row["mean_staleness"] <= row["largest_staleness"] < 24
        assert row["sync"] != "bsp" or row["largest_staleness"] == 0
    assert {r["ratio"] for r in rows if r["subject"] == "bsp"} == {1.0}
    accuracies = {r["accuracy"] for r in rows if r["subject"] == "bsp"}
    assert len(accuracies) == 1  # stragglers change no bit of it
    if HAS_MATPLOTLIB:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ranks", "flags", "words"),
    [
        (1, (), "1 ranks are no 2 workers and a server: mpirun -n 5 or more"),
        (3, ("--cases", "none,fast"), "'fast' is none of none, random, slow"),
        (3, ("--modes", "asp"), "--modes asp: bsp is missing"),
        (3, ("--steps", "3"), "that is no time to measure in"),
        (3, ("--base", "0.5"), "--base 0.5 must be between 1 and 300"),
        (3, ("--json", "no/such/folder/out.json"), "cannot be written"),
    ],
)
def test_unusable_flags_are_one_line(ranks: int, flags: tuple[str, ...], words: str) -> None:
    told = run(ranks, SCRIPT, *flags)
    assert told.status == 2
    assert sum("sync.py: " in line for line in told.err.splitlines()) == 1
    assert words in told.err
    assert "Traceback" not in told.err
