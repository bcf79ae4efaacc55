"""benchmarks/plan.py: a row a layout, with what was predicted beside what was measured."""

import json
from pathlib import Path

import pytest
from helpers.benchfiles import Import

from nnmpi.comm import comm_self

pytest.importorskip("matplotlib")


def test_each_layout_has_a_row(
    module: Import,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = module("plan")
    monkeypatch.setitem(bench.CASES, "mlp", {"model": "iris-mlp", "data": "iris", "batch_size": 30})
    monkeypatch.setitem(bench.LAYOUTS, 1, {"m1": {}, "m2": {"micro_batches": 2}})
    for place in (bench, bench.ranks):
        monkeypatch.setattr(place, "world", comm_self)
    file, picture = tmp_path / "rows.json", tmp_path / "plan.png"
    flags = ["--cases", "mlp", "--rounds", "1", "--steps", "2", "--setting", "here"]
    bench.main([*flags, "--json", str(file)])
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [row["case"] for row in rows] == ["mlp m1", "mlp m2", "mlp chosen"]
    for row in rows:
        assert row["setting"] == "here"
        assert row["error"] == pytest.approx(row["predicted_seconds"] / row["seconds"] - 1)
        assert row["bytes"] == row["predicted_bytes"] == 0
        assert 0 < row["predicted_memory"] < 2 * row["memory"]
    out = capsys.readouterr().out
    assert "bytes: exact for 3 of 3 layouts" in out
    assert "one rank was chosen" in out
    bench.main(["--from", str(file), "--plot", str(picture)])
    assert picture.read_bytes()[:4] == b"\x89PNG"
