"""The README's example runs as it stands, and its commands are understood."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mpijob import run

from nnmpi import simulate, train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = ("T", "T*", "T+")
EXAMPLE = re.search(r"```python\n(.*?)```", README, re.S)
CODE = re.findall(r"```python\n(.*?)```", README, re.S)
SIMULATIONS = re.findall(r"^python -m nnmpi\.simulate (.*)$", README, re.M)
COMMANDS = re.findall(r"^(?:mpirun -n \d+ )?python -m nnmpi\.train (.*)$", README, re.M)


def test_example_runs_as_shown_and_learns(tmp_path):
    assert EXAMPLE is not None
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE[1]],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 90
    assert (tmp_path / "xor.safetensors").exists()


def test_example_is_short():
    assert EXAMPLE is not None
    assert sum(bool(line.strip()) for line in EXAMPLE[1].splitlines()) <= 15


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("epochs = 2\n")
    assert train.config(shlex.split(command)).epochs >= 1


def test_the_speed_table_is_the_one_that_was_measured():
    """Each ratio in the table stands in the file that the text names."""
    named = re.search(r"`(benchmarks/results/training[\w.-]+\.json)`", README)
    assert named is not None
    rows = json.loads((ROOT / named[1]).read_text(encoding="utf-8"))
    ratios = [[row[f"ratio to {other}"] for other in OTHERS] for row in rows if "ratio to T" in row]
    assert len(ratios) == 5
    shown = re.findall(r"^\| W.*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.M)
    assert shown == [tuple(f"{value:.2f}" for value in row) for row in ratios]


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 5


def test_the_example_of_ranks_runs_on_two(tmp_path):
    """Its sums double x thrice: 1 + 2 = 3, 6, 12, 24."""
    ranks = next(code for code in CODE if "world()" in code)
    (tmp_path / "ranks.py").write_text(ranks)
    told = run(2, tmp_path / "ranks.py")
    assert told.status == 0, told.err
    assert "ucx" not in told.err.lower()  # Open MPI has much to say about what is not there
    sums = sorted(line.split(", ")[0] for line in told.out.splitlines())
    assert sums == ["rank 0: 24", "rank 1: 24"]


@pytest.mark.parametrize("command", SIMULATIONS)
def test_simulations_are_understood(command, capsys):
    assert simulate.main(shlex.split(command)) == 0
    assert "ring" in capsys.readouterr().out


def test_the_tables_of_all_reduces_are_those_that_were_measured():
    files = {"2 ranks": "2-ranks-zen4", "4 ranks, 2 cores": "4-ranks-zen4"}
    sizes = [4096, 1 << 18, 1 << 20, 1 << 22, 1 << 24]
    other = {"comm.shared": "window", "PyTorch's gloo": "gloo"}
    shown = re.findall(r"^\| (\d ranks[^:]*): `?([^|`]+)`? \| (.*) \|$", README, re.M)
    assert len(shown) == 14
    for ranks, name, cells in shown:
        rows = all_reduces(f"collectives-{files[ranks]}.json")
        ratios = [rows[other.get(name, name), n]["ratio"] for n in sizes]
        want = [f"{r:.0f}x" if r >= 100 else f"{r:.2f}x" for r in ratios]
        assert cells.split(" | ") == want, (ranks, name)
        for way, times in (("window", 7), ("auto", 2.9)):  # as the text says of every size
            gloo = {n: row["seconds"] for (name, n), row in rows.items() if name == "gloo"}
            assert all(s >= times * rows[way, n]["seconds"] for n, s in gloo.items())
    rows = all_reduces("collectives-cluster-1gbit.json")
    shown = re.findall(r"^\| `(\w+)` \| (\d+) ms \| (\d+) ms \| ([\d.]+)x \|$", README, re.M)
    assert len(shown) == 3
    for name, *cells in shown:
        row = rows[name, 8 << 20]
        times = [f"{row[key] * 1e3:.0f}" for key in ("seconds", "predicted_seconds")]
        assert cells == [*times, f"{row['ratio']:.2f}"]


def all_reduces(file: str) -> dict[tuple[str, int], dict[str, float]]:
    rows = json.loads((ROOT / "benchmarks" / "results" / file).read_text(encoding="utf-8"))
    return {(row["algorithm"], row["bytes"]): row for row in rows if row["case"] == "all_reduce"}


def test_the_table_of_scaling_is_the_one_that_was_measured():
    file = "scaling-2-ranks-zen5.json"
    rows = json.loads((ROOT / "benchmarks" / "results" / file).read_text(encoding="utf-8"))
    found = {(row["case"], row["scaling"], row["subject"]): row for row in rows}
    shown = re.findall(r"^\| (W\d), (weak|strong) \| (.*) \|$", README, re.M)
    assert len(shown) == 4
    for case, scaling, cells in shown:
        ours, ddp = found[case, scaling, "nnmpi"], found[case, scaling, "DDP T*"]
        assert ours["ranks"] == ddp["ranks"] == 2
        want = [
            *(f"{ours['samples_per_second']:,.0f}", f"{ours['over_one_rank']:.2f}"),
            *(f"{ddp['samples_per_second']:,.0f}", f"{ddp['over_one_rank']:.2f}"),
            f"{ours['ratio']:.2f}",
        ]
        assert cells.split(" | ") == want, (case, scaling)
    limits = [f"{found[case, 'weak', 'nnmpi apart']['over_one_rank']:.2f}" for case in ("W1", "W2")]
    assert f"come to {limits[0]} of one on W1 and to {limits[1]} on W2" in " ".join(README.split())
    threads_or_ranks = found["W1", "strong", "nnmpi"]["over_one_rank"]
    assert f"two ranks with one thread each at {threads_or_ranks:.2f} times" in README


def results(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / file).read_text())
    return rows


def test_what_is_hidden_is_what_was_measured():
    with_, without, alone = results("scaling-cluster-600mbit.json")
    text = " ".join(README.split())
    times = [f"{row['seconds'] * 1e3:.1f} ms" for row in (with_, without, alone)]
    assert f"takes {times[0]}, {times[1]} with" in text
    assert f"and {times[2]} if nothing is summed" in text
    sure = [f"{with_[key]:.0%}" for key in ("hidden_share_low", "hidden_share_high")]
    assert (
        f"{with_['hidden_share']:.0%} of the time of the sums is hidden ({' to '.join(sure)}"
        in text
    )
    newer = results("scaling-cluster-1gbit-zen5.json")
    times = [f"{row['seconds'] * 1e3:.1f} ms" for row in newer]
    share = f"{newer[0]['hidden_share']:.0%} hidden"
    assert f"{times[0]} with overlap, {times[1]} without, {times[2]} without sums, {share}" in text


def test_the_tables_of_stragglers_are_those_that_were_measured():
    rows = results("sync-5-ranks-zen4.json")
    found = {(row["case"], row["subject"]): row for row in rows}
    names = {"all alike": "none", "each 5x slower at a tenth of its steps": "random"}
    names["one always 3x slower"] = "one slow"
    head = re.search(r"^\| over BSP \| (.*) \|$", README, re.M)
    assert head is not None
    for name, case in names.items():
        shown = re.search(rf"^\| {name} \| (.*) \|$", README, re.M)
        assert shown is not None
        want = [f"{found[case, mode]['ratio']:.2f}" for mode in head[1].split(" | ")]
        assert shown[1].split(" | ") == want
    page = (ROOT / "docs" / "synchrony.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^\| ([\w ]+): `([\w -]+)` \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", page, re.M
    )
    assert len(shown) == len(rows)
    for name, mode, *cells in shown:
        row = found[names[name], mode]
        want = [f"{row['samples_per_second']:,.0f}", f"{row['ratio']:.2f}"]
        assert cells == [*want, f"{row['ratio_in_theory']:.2f}"], (name, mode)
