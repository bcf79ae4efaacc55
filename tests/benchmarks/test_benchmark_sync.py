"""benchmarks/sync.py: its theoretical model, its figures, and a run."""

import importlib
import importlib.util
import json
from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from helpers.benchfiles import BENCHMARKS, Import, refusal
from helpers.mpijob import run as mpirun

SCRIPT = str(BENCHMARKS / "sync.py")
TINY = ("--steps", "12", "--repeats", "1", "--base", "5", "--batch", "6")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
run = partial(mpirun, timeout=250)  # seconds; enough on a busy machine


def test_theory_where_one_worker_is_three_times_slower(module: Import) -> None:
    model = module("lib.sync.model")
    slow, modes = model.CASES["slow"], model.MODES
    bsp, ssp, asp = (model.expected(slow, modes[m], 4, 300, 0) for m in ("bsp", "ssp3", "asp"))
    cold = 4 * 75
    assert bsp.seconds(cold) == 3 * 225
    assert bsp.seconds(cold) / asp.seconds(cold) == pytest.approx(2.5, rel=0.02)
    assert bsp.seconds(cold) / ssp.seconds(cold) == pytest.approx(1, rel=0.02)
    assert bsp.mean_staleness == 0
    assert asp.mean_staleness == pytest.approx(3, rel=0.02)


def test_figures_are_medians_over_repeats(module: Import) -> None:
    sync, sync_run, model = module("sync"), module("lib.sync.run"), module("lib.sync.model")

    def result(seconds: float, **staleness: int) -> object:
        counts = Counter({int(s[1:]): n for s, n in staleness.items()})
        return sync_run.RunResult(100, seconds, 0.9, counts)

    def entry(case: str, mode: str) -> object:
        return sync_run.Entry(model.CASES[case], model.MODES[mode])

    runs = {
        entry("none", "bsp"): [result(1), result(2), result(3)],
        entry("slow", "bsp"): [result(4), result(4), result(6)],
        entry("slow", "asp"): [result(2, s0=1, s4=3), result(1, s2=2), result(6, s1=5)],
    }
    a = Namespace(steps=40, batch=64)
    undisturbed, bsp, asp = sync.rows_of(runs, 4, a, {"cores": 2})
    assert (asp["ratio"], asp["ratio_least"], asp["ratio_most"]) == (2, 1, 4)
    assert asp["ratio_in_theory"] == pytest.approx(2.5, rel=0.05)
    assert (asp["mean_staleness"], asp["largest_staleness"]) == (2, 4)
    assert "over_no_straggler" not in asp
    assert bsp["over_no_straggler"] == 0.5
    assert bsp["over_no_straggler_in_theory"] == pytest.approx(1 / 3)
    assert undisturbed["samples_per_second"] == 50
    assert undisturbed["seconds"] == 64 / 50
    runs[entry("slow", "asp")][1] = result(0)
    with pytest.raises(SystemExit, match="40 steps are too few here; give more --steps"):
        sync.rows_of(runs, 4, a, {"cores": 2})


def test_every_mode_has_rows_and_the_plot_is_written(tmp_path: Path) -> None:
    flags = ["--json", str(tmp_path / "out.json")]
    flags += ["--plot", str(tmp_path / "out.png")] if HAS_MATPLOTLIB else []
    ended = run(3, SCRIPT, *TINY, "--modes", "bsp,allreduce,ssp1,asp", *flags)
    assert ended.status == 0, ended.err
    rows = json.loads((tmp_path / "out.json").read_text())
    modes = {("bsp", "bsp", 0, 3), ("all-reduce", "bsp", 0, 2), ("ssp 1", "ssp", 1, 3)}
    modes |= {("asp", "asp", 0, 3)}
    found = {(r["case"], r["subject"], r["sync"], r["staleness"], r["ranks"]) for r in rows}
    assert found == {(case, *mode) for case in ("none", "random", "one slow") for mode in modes}
    assert len(rows) == len(found)
    for row in rows:
        assert row["benchmark"] == "sync"
        assert row["samples_per_second"] > 0
        assert row["mean_staleness"] <= row["largest_staleness"] < 24
        assert row["sync"] != "bsp" or row["largest_staleness"] == 0
    assert {r["ratio"] for r in rows if r["subject"] == "bsp"} == {1.0}
    accuracies = {r["accuracy"] for r in rows if r["subject"] == "bsp"}
    assert len(accuracies) == 1  # stragglers do not change the result
    if HAS_MATPLOTLIB:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ranks", "flags", "words"),
    [
        (1, (), "needs at least 3 ranks, 2 workers and a server, got 1: mpirun -n 5"),
        (3, ("--cases", "none,fast"), "'fast' is not one of none, random, slow"),
        (3, ("--modes", "asp"), "--modes asp lacks bsp"),
        (3, ("--steps", "3"), "are too few"),
        (3, ("--base", "0.5"), "--base 0.5 must be between 1 and 300"),
        (3, ("--json", "no/such/folder/out.json"), "cannot be written"),
    ],
)
def test_unusable_flags_are_reported_in_one_line(
    ranks: int,
    flags: tuple[str, ...],
    words: str,
    module: Import,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parse = module("sync").parse
    errors = [refusal(partial(parse, flags, rank, ranks), capsys) for rank in range(ranks)]
    error = "".join(errors)  # of the first rank alone
    assert words in error
    assert error.count("\n") == 1
