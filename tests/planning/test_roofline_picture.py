"""scripts/draw_roofline.py: no kernel is above a roof, and the picture is drawn."""

import runpy
from pathlib import Path

import pytest
from helpers.mpijob import ROOT

from nnmpi.planning.described.description import machines

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "draw_roofline.py"))


def test_kernels_are_under_both_roofs_and_reach_one_of_them() -> None:
    machine = machines()["a100-80g"]
    dtype = "bfloat16"
    for of_kind in SCRIPT["kernels"](machine).values():
        for kernel in of_kind:
            roof = min(machine.rate(dtype), kernel.operations / kernel.nbytes * machine.moved)
            assert 0.8 * roof < kernel.rate(machine, dtype) <= roof


@pytest.mark.parametrize(("machine", "status"), [("v100-32g", 0), ("cray-1", 2)])
def test_the_picture_is_drawn(machine: str, status: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.png"
    assert SCRIPT["main"](["--machine", machine, "--out", str(picture)]) == status
    assert picture.exists() == (status == 0)
