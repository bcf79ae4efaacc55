"""scripts/draw_cuts.py --zero: each stage of ZeRO holds less, and the picture is drawn."""

import runpy
from pathlib import Path

import pytest
from helpers.mpijob import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "draw_cuts.py"))


def test_each_stage_of_zero_divides_one_more_kind() -> None:
    held = [SCRIPT["row_of"](f"--dp 8 --zero {stage}", 8).held for stage in range(4)]
    whole = held[0]
    for stage, kind in enumerate(("optimizer", "gradients", "parameters"), 1):
        assert held[stage - 1][kind] == whole[kind]
        assert held[stage][kind] == pytest.approx(whole[kind] / 8, rel=0.01)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "zero.png"
    assert SCRIPT["main"](["--zero", "--out", str(picture)]) == 0
    assert picture.exists()
    assert SCRIPT["main"](["--zero", "--out", str(tmp_path / "zero.txt")]) == 2
