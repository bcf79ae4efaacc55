"""The command nnmpi.simulate pipeline: its output, and what it refuses."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.commands import Completed

from nnmpi.schedules.pipeline import SCHEDULES

KIND = "pipeline"

SIZE = "--stages 4 --micro-batches 8"


def test_the_report_of_1f1b(simulator: Any) -> None:
    result = simulator("--schedule 1f1b --stages 2 --micro-batches 3 --send 0.5")
    assert (result.status, result.err) == (0, "")
    assert result.out == (
        "1f1b: 2 ranks, 3 micro-batches\n"
        "forward 1, backward 2, send 0.5\n"
        "time      14\n"
        "bubble    0.5556 of the time of computation\n"
        "formula   (p-1)/m = 0.3333\n"
        "\n"
        "rank  busy  idle  micro-batches held  activations held\n"
        "0        9     5                   2                 2\n"
        "1        9     5                   1                 1\n"
        "\n"
        "rank 0  F0- F1- ............B0----- F2- B1----- ........B2-----\n"
        "rank 1  ......F0- B0----- F1- B1----- ....F2- B2----- ..........\n"
        "\n"
        "F forward   B backward   . idle\n"
    )


def test_backward_is_halved_and_stages_are_a_part_of_a_rank(simulator: Any) -> None:
    size = "--stages 1 --micro-batches 2 --forward 3 --backward 8 --json"
    zb = json.loads(simulator(f"--schedule zb-h1 {size}").out)
    three = json.loads(simulator(f"--schedule interleaved --virtual-stages 3 {size}").out)
    assert zb["time"] == 22
    assert three["time"] == pytest.approx(22)
    assert three["virtual_stages"] == 3


def test_where_a_formula_does_not_hold_its_condition_is_told(simulator: Any) -> None:
    out = simulator("--schedule interleaved --stages 4 --micro-batches 6").out
    assert "interleaved, 2 stages a rank: 4 ranks, 6 micro-batches\n" in out
    assert "formula   (p-1)/(V m) holds where p divides m\n" in out
    assert "(p-1)/(3m) holds where m >= p" in simulator(
        "--schedule zb-h1 --stages 4 --micro-batches 2"
    ).out  # fmt: skip


def test_all_schedules_side_by_side(simulator: Any) -> None:
    lines = simulator(f"--compare {SIZE}").out.splitlines()
    assert lines[0] == "pipelines: 4 ranks, 8 micro-batches"
    assert [line.split()[0].strip(",") for line in lines[3:]] == list(SCHEDULES)
    figures = {line.split()[0].strip(","): line.split()[-6:] for line in lines[3:]}
    assert figures["naive"] == ["96", "3", "3", "p-1", "1", "1"]
    assert figures["zb-h1"] == ["27", "0.125", "0.125", "(p-1)/(3m)", "4", "4"]
    assert figures["interleaved"][-2:] == ["11", "5.5"]
    named = simulator(f"--compare zb-h1,naive {SIZE}").out.splitlines()
    assert [line.split()[0] for line in named[3:]] == ["zb-h1", "naive"]


def test_json_has_one_object_or_a_list(simulator: Any) -> None:
    one = json.loads(simulator(f"--schedule gpipe {SIZE} --recompute --json").out)
    assert (one["schedule"], one["ranks"], one["micro_batches"]) == ("gpipe", 4, 8)
    assert one["activations_held"] == [1.0] * 4
    assert one["formula"] == {"formula": "(p-1)/m", "bubble": 0.375}
    rows = json.loads(simulator(f"--compare {SIZE} --json").out)
    assert [row["schedule"] for row in rows] == list(SCHEDULES)
    assert all(row["bubble"] == pytest.approx(row["formula"]["bubble"]) for row in rows)


def test_pictures(simulator: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    assert simulator(f"--schedule 1f1b {SIZE} --svg {file}").status == 0
    assert len(ElementTree.parse(file).findall("{http://www.w3.org/2000/svg}g")) == 4 * 8 * 2
    assert simulator(f"--compare {SIZE} --svg {file}").status == 0
    text = file.read_text(encoding="utf-8")
    assert [name for name in SCHEDULES if f">{name}" not in text] == []
    assert "goes on until 96" in text
    assert simulator(f"--compare gpipe,zb-h1 {SIZE} --svg {file}").status == 0
    text = file.read_text(encoding="utf-8")
    assert (">gpipe: bubble 37.5%" in text, ">naive" in text) == (True, False)


def test_a_picture_that_cannot_be_written(simulator: Any, tmp_path: Path) -> None:
    file = tmp_path / "none" / "a.svg"
    result = simulator(f"--compare {SIZE} --svg {file}")
    line = f"nnmpi.simulate: cannot write {file}: No such file or directory\n"
    assert result == Completed(1, "", line)
