"""benchmarks/sharding.py: how rows follow from measurements, and a small run."""

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.benchfiles import BENCHMARKS, Import
from helpers.mpijob import environment, launcher

# The cluster is the machine's: a test that starts one disturbs those of scripts/cluster.
WITHOUT_CLUSTER = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import sharding
from lib import jobs

def none(*_):
    raise jobs.JobError("no cluster in this test")

jobs.cluster = none
sharding.main()
"""
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def bench(module: Import) -> Any:
    return module("lib.sharding.bench").Bench(3, 0.1, True, 60, {"cores": 2})


def test_memory_is_beside_the_formula_and_the_peak_beside_its_parts(module: Import) -> None:
    b, sections = bench(module), module("lib.sharding.sections")
    case = b.case("50M", 2, dp=2, zero=1)
    n = b.parameters(case)
    ranks = module("lib.ranks")
    alone = ranks.Memory(4 * n, 4 * n, 8 * n, 0, 0, 0, 16 * n + 10, 0, 16 * n + 40, 0)
    found = ranks.Memory(
        4 * n, 4 * n, 4 * n, 100, 60, 0, 12.6 * n + 150, 150, 12.6 * n + 190, 15 * n
    )
    row = sections.memory_row(b, case, found, ranks.MemorySaid(12 * n, 90, 20), alone)
    assert row["ratio"] == pytest.approx(1.05)
    assert (row["predicted_bytes"], row["predicted_per_parameter"]) == (12 * n, 12)
    assert (row["activation_bytes"], row["predicted_activation_bytes"]) == (30, 20)
    assert row["predicted_peak_bytes"] == 12 * n + 90 + 60 + 20
    assert row["resident_per_parameter"] == 15
    assert row["resident_ratio"] == 15 * n / row["predicted_peak_bytes"]
    assert (row["layout"], row["counted_bytes"]) == ("dp 2, zero 1, ring", 12 * n)


def test_bytes_are_beside_the_formula(module: Import) -> None:
    b, sections = bench(module), module("lib.sharding.sections")
    sent = module("lib.ranks").Sent
    case = b.case("mlp", 2, dp=2, zero=3, micro_batches=4)
    unit = b.parameters(case) * 4 / 2
    row = sections.bytes_row(b, case, sent(12.5 * unit, 7), sent(12 * unit, 6))
    assert (row["units"], row["predicted_units"]) == (12.5, 12)
    assert (row["messages"], row["predicted_messages"]) == (7, 6)
    assert (row["predicted_bytes"], row["ratio"]) == (12 * unit, 12.5 / 12)
    row = sections.bytes_row(b, b.case("mlp", 2, pp=2), sent(1, 2), sent(1, 2))
    assert "units" not in row


def test_ratios_are_medians_over_rounds(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    b, sections = bench(module), module("lib.sharding.sections")
    base = b.case("mlp", 2, dp=2)
    case = base._replace(zero=3)
    times = {base: [1.0, 2.0, 4.0], case: [1.5, 2.0, 8.0]}
    monkeypatch.setattr(b, "time", lambda cases: times)
    first, second = sections.over(b, base, [case])
    assert "ratio" not in first
    assert (second["ratio_low"], second["ratio"], second["ratio_high"]) == (1.25, 1.5, 1.75)
    assert (second["against"], second["goal"]) == ("dp 2, ring", 1.5)


@pytest.mark.long
@pytest.mark.timeout(300)  # a job for each number of ranks and section
def test_every_section_has_rows_and_the_plot_is_written(tmp_path: Path) -> None:
    launcher(sys.executable)  # skips where there is none
    flags = ["--small", "--rounds", "1", "--seconds", "0.001", "--json", str(tmp_path / "out.json")]
    flags += ["--plot", str(tmp_path / "out.png")] if HAS_MATPLOTLIB else []
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_CLUSTER, *flags],
        capture_output=True,
        text=True,
        check=False,
        env=environment({}),
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    assert "no cluster in this test" in ended.stdout
    rows = json.loads((tmp_path / "out.json").read_text())
    assert {row["benchmark"] for row in rows} == {"sharding"}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["section"], []).append(row)
    counts = {"memory": 6, "bytes": 19, "time": 15, "weak": 3, "halo": 4}
    assert {name: len(of_section) for name, of_section in found.items()} == counts
    for row in found["memory"]:  # the counters of stores, and what fills up pages of windows
        slack = 0.03 if row["algorithm"] == "shared" else 0
        assert row["counted_bytes"] == pytest.approx(row["predicted_bytes"], rel=slack)
        assert row["bytes"] > 0.95 * row["counted_bytes"]
    for row in found["bytes"]:
        assert row["bytes"] == row["predicted_bytes"], row["layout"]
        assert row["messages"] == row["predicted_messages"], row["layout"]
    if HAS_MATPLOTLIB:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_parameters_are_those_of_the_model(module: Import) -> None:
    b = bench(module)
    widths = (8, *[64] * 13, 10)
    assert b.parameters(b.case("deep")) == sum((k + 1) * o for k, o in pairwise(widths))


def test_a_case_is_the_same_on_a_rank(module: Import) -> None:
    runs, layers = module("lib.runs"), module("lib.sharding.layers")
    case = runs.Case("sharding", "mlp", 64, dp=2, zero=3, bucket_mb=16.0, small=True)
    assert runs.Case.of(case.text) == case
    image = layers.LayerCase("image", (64, 32), 2)
    assert layers.LayerCase.of(image.text) == image
