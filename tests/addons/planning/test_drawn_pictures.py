"""scripts/draw_*.py and benchmarks/draw.py: what pictures show is so, and they are drawn."""

import runpy
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment, outcome_of

from nnmpi.addons.planning.described.description import machines

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "draw_roofline.py"))
CUTS = runpy.run_path(str(ROOT / "scripts" / "draw_cuts.py"))
KILL = runpy.run_path(str(ROOT / "scripts" / "draw_kill.py"))


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


def test_each_stage_of_zero_divides_one_more_kind() -> None:
    held = [CUTS["row_of"](f"--dp 8 --zero {stage}", 8).held for stage in range(4)]
    for stage, kind in enumerate(("optimizer", "gradients", "parameters"), 1):
        assert held[stage - 1][kind] == held[0][kind]
        assert held[stage][kind] == pytest.approx(held[0][kind] / 8, rel=0.01)


@pytest.mark.parametrize(("name", "status"), [("zero.png", 0), ("zero.txt", 2)])
def test_the_picture_of_zero_is_drawn(name: str, status: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert CUTS["main"](["--zero", "--out", str(tmp_path / name)]) == status
    assert (tmp_path / name).exists() == (status == 0)


def test_a_killed_rank_is_drawn_up_to_where_it_wrote_last() -> None:
    steps = [("step", k, float(k), k + 1.0) for k in range(10, KILL["LAST"] + 1)]
    killed = [
        *steps[: KILL["KILLED"] - 9],
        ("killed", -1, KILL["KILLED"] + 1.0, KILL["KILLED"] + 1.5),
    ]
    timeline = KILL["timeline"]([steps, killed])
    assert {span.kind for span in timeline.spans} <= {*KILL["STYLES"]}
    of_rank = [[s for s in timeline.spans if s.rank == rank] for rank in range(2)]
    assert [s.micro for s in of_rank[0]] == [*range(KILL["FIRST"], KILL["LAST"] + 1)]
    assert [s.micro for s in of_rank[1]] == [*range(KILL["FIRST"], KILL["KILLED"] + 1), -1]
    assert (
        of_rank[1][-1].start == of_rank[1][-1].end == 1e3 * (KILL["KILLED"] + 1.5 - KILL["FIRST"])
    )


@pytest.mark.parametrize(
    "rows", ["start-1-node", "scaling-2-ranks-zen3", "text-training-float32-zen3"]
)
def test_stored_rows_are_drawn(rows: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stored, picture = ROOT / "benchmarks" / "results" / f"{rows}.json", tmp_path / "rows.png"
    command = [sys.executable, str(ROOT / "benchmarks" / "draw.py"), str(stored), str(picture)]
    done = outcome_of(command, environment({}), timeout=100)
    assert done.status == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")
