"""scripts/gpu_check writes what it has found after each stage."""

import importlib.util
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.py"


def test_a_benchmark_that_fails_leaves_the_others(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    out = tmp_path / "found.json"

    def run(folder: Path, options: Sequence[str]) -> list[Any]:
        assert json.loads(out.read_text())["tests"] == {"passed": 3}
        if options == ["--bad"]:
            raise subprocess.CalledProcessError(1, "training.py")
        return [list(options)]

    stages = [(run, ["--bad"]), (run, ["--good"])]
    broken = script.run_stages(out, {"tests": {"passed": 3}}, tmp_path, stages)
    written = json.loads(out.read_text())
    assert written["rows"] == [["--good"]]
    assert written["broken"] == broken
    assert len(broken) == 1
