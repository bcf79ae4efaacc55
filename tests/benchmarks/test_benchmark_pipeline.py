"""benchmarks/pipeline.py: its figures beside theory, and a small run of all of it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.benchfiles import BENCHMARKS, Import
from helpers.mpijob import environment, launcher

from nnmpi.parallel.pipeline.profile import UnitCost

SCRIPT = str(BENCHMARKS / "pipeline.py")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
TINY = ("--small", "--rounds", "1", "--seconds", "0.001", "--micro-batches", "2")


def command(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *flags],
        capture_output=True,
        text=True,
        check=False,
        env=environment({}),
        timeout=280,
    )


def bench(module: Import, name: str = "mlp") -> Any:
    """A Bench without jobs; all square layers of its model cost the same, and others nothing."""
    runs, model = module("lib.runs"), module("lib.pipeline.model")
    found = runs.PIPELINE[name][True]
    free, layer = UnitCost(0, 0, 0, 0, 0, 0), UnitCost(1, 1, 1, 10, 100, 100)
    squares = len(model.Profiled.of(found, []).units) - 3
    profiled = model.Profiled.of(found, [free, free, *[layer] * squares, free])
    make = module("lib.pipeline.bench").Bench
    return make(3, 0.1, True, 60, {"cores": 2}, [4], {name: profiled})


def test_speedups_are_medians_beside_the_ideal_ones(module: Import) -> None:
    sections, b = module("lib.pipeline.sections"), bench(module)
    one, two = b.one("mlp", 4), b.pipeline("mlp", 4)
    apart = one._replace(apart=True)
    assert (one.ranks, two.ranks, apart.ranks) == (1, 2, 2)
    times = {one: [3.0, 4.0, 5.0], two: [2.0, 2.5, 5.0], apart: [3.0, 8.0, 5.0]}
    first, pipeline, separate = sections.speed_up_rows(b, "mlp", times)
    assert "ratio" not in first
    assert (pipeline["ratio_low"], pipeline["ratio"], pipeline["ratio_high"]) == (1.25, 1.5, 1.55)
    assert pipeline["ideal_ratio"] == pipeline["predicted_ratio"] == 1.6
    assert pipeline["of_ideal"] == pytest.approx(1.5 / 1.6)
    assert (pipeline["goal"], pipeline["goal_of"], pipeline["balanced"]) == (0.95, "of_ideal", True)
    assert (pipeline["seconds"], pipeline["rounds"]) == (2.5, 3)
    assert separate["ratio"] == 2  # of 2, 1 and 2


def test_a_schedule_is_compared_in_measurement_and_simulation(module: Import) -> None:
    sections, b = module("lib.pipeline.sections"), bench(module)
    base, case = b.pipeline("mlp", 2, "gpipe"), b.pipeline("mlp", 2, "interleaved")
    assert (base.cut.count(","), case.cut.count(",")) == (0, 2)
    times = {base: [9.0, 9.0, 9.0], case: [6.0, 9.0, 6.0]}
    first, second = sections.pair_rows(b, base, case, times)
    assert "ratio" not in first
    assert (second["ratio"], second["against"]) == (1.5, "gpipe")
    # 8 layers: 2 micro-batches of 4 layers, and a bubble of 4 or of 2 layers
    assert (first["predicted_seconds"], second["predicted_seconds"]) == (36, 30)
    assert second["of_predicted"] == pytest.approx(1.5 / 1.2)


def test_a_slow_network_is_beside_the_time_of_the_bytes_alone(module: Import) -> None:
    sections, b = module("lib.pipeline.sections"), bench(module, "wide")
    pipeline, parallel = sections._wide(b)
    assert (pipeline.ranks, parallel.ranks, pipeline.cut) == (2, 2, "5")
    sent = [4096, 75000]
    rows = sections.network_rows(b, (pipeline, parallel), ([1.0, 2.0], [4.0, 6.0]), sent)
    assert (rows[0]["ratio"], rows[0]["against"]) == (3.5, "data parallelism")
    assert [row["wire_seconds"] for row in rows] == [4 * n / 1e9 for n in sent]


def test_a_cluster_that_does_not_start_is_reported(
    module: Import, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = module("lib.pipeline.sections")

    def refuse(*words: object) -> None:
        raise sections.JobError("network namespaces need root")

    monkeypatch.setattr(module("lib.jobs"), "cluster", refuse)
    assert sections.network(bench(module, "wide")) == []
    assert "need root" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(300)  # two jobs, and a process for each count
def test_every_section_has_rows_and_the_plot_is_written(tmp_path: Path) -> None:
    launcher(sys.executable)  # skips where there is none
    flags = ["--json", str(tmp_path / "out.json")]
    flags += ["--only", "speed-up,schedules,memory,recompute,bytes"]  # network may need root
    flags += ["--plot", str(tmp_path / "out.png")] if HAS_MATPLOTLIB else []
    ended = command(*TINY, *flags)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "out.json").read_text())
    assert all(r["benchmark"] == "pipeline" for r in rows)
    assert all(r["seconds"] > 0 for r in rows if r["section"] not in ("memory", "bytes"))

    def found(section: str, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(r[key] for key in keys) for r in rows if r["section"] == section]

    assert found("speed-up", "case", "subject") == [
        (name, subject)
        for name in ("mlp", "cnn", "mnist-cnn")
        for subject in ("1 rank", "pipeline")
    ]
    assert found("schedules", "schedule", "micro_batches") == [
        *(("1f1b", 2), ("zb-h1", 2), ("1f1b", 4), ("zb-h1", 4)),
        *(("gpipe", 2), ("interleaved", 2), ("gpipe", 4), ("interleaved", 4)),
        *((name, 8) for name in ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "pipedream")),
    ]
    (gpipe,), (other,) = found("memory", "bytes")
    assert other < gpipe / 2  # the goal is for models whose activations are larger
    assert found("recompute", "micro_batches", "recompute") == [
        *((4, False), (4, True), (8, False), (8, True))
    ]
    parameters = 8 * 64 + 64 + 2 * (64 * 64 + 64) + 64 * 10 + 10
    formulas = 2 * 8 * 64 * 4, 2 * parameters * 4  # activations and their gradients; a ring
    for (counted, said), formula in zip(
        found("bytes", "bytes", "predicted_bytes"), formulas, strict=True
    ):
        assert counted == said
        assert formula <= counted < formula + 1000  # and a few numbers that ranks agree on
    if HAS_MATPLOTLIB:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_recompute_formula(module: Import) -> None:
    model = module("lib.pipeline.model")
    assert model.recompute_speed(1) == 1
    assert model.recompute_speed(4) == 0.8


def test_a_case_is_the_same_on_a_rank(module: Import) -> None:
    runs = module("lib.runs")
    case = runs.Case("pipeline", "mlp", 64, 4, pp=2, schedule="zb-h1", cut="3", small=True)
    assert runs.Case.of(case.text) == case
