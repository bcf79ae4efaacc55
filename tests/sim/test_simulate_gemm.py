"""The command nnmpi.simulate gemm: its output, and what it refuses."""

import json
import re
from typing import Any

import pytest

KIND = "gemm"

SIZE = "--rows 4096 --inner 4096 --columns 4096"


def test_the_tables(simulator: Any) -> None:
    result = simulator(f"{SIZE} --ranks 16")
    assert (result.status, result.err) == (0, "")
    head, one, two = result.out.split("\n\n")
    assert head == (
        "gemm: N = 4,096, K = 4,096, O = 4,096, with both gradients: 16 ranks, 4 bytes a number\n"
        "alpha 5e-06 s, beta 1e-10 s/B, gamma 0 s/B, 1e+11 flop/s"
    )
    title, *rows, best, point = one.splitlines()
    assert title.startswith("one layer, K -> O")
    cells = [re.split(r"  +", row) for row in rows]
    grids = [f"2-D {grid}" for grid in ("1x16", "2x8", "4x4", "8x2", "16x1")]
    assert [row[0] for row in cells] == ["column", "row", *grids]
    assert cells[4] == [
        *("2-D 4x4", "266 ms", "1.00", "3%", "75.5 MB", "144"),
        *("4.194 MB", "8.389 MB", "39.85 MB"),
    ]
    assert best == "fastest: 2-D 4x4; least received: 2-D 4x4; least memory: 2-D 4x4"
    assert point == (
        "where a 2-D grid receives less than column, row, 1xP, Px1: from 4 ranks on (powers of two)"
    )
    assert two.splitlines()[0].startswith("two layers, K -> O -> K")
    assert "where a 2-D grid receives less than" in two
    assert ": from 8 ranks on (powers of two)" in two


def test_one_grid(simulator: Any) -> None:
    out = simulator(f"{SIZE} --ranks 6 --grid 2x3").out
    assert re.findall(r"^2-D (\w+)", out, re.M) == ["2x3", "2x3"]
    assert simulator(f"{SIZE} --ranks 6").out.count("2-D 2x3 ") == 2


def test_where_one_dimension_always_wins(simulator: Any) -> None:
    out = simulator("--rows 1 --inner 64 --columns 1000000000 --ranks 4").out
    assert ", Px1: nowhere up to 1,048,576 ranks" in out


def test_one_rank_moves_nothing(simulator: Any) -> None:
    rows = json.loads(simulator("--rows 8 --inner 4 --columns 4 --ranks 1 --json").out)
    assert [row["layout"] for row in rows] == ["column", "row", "2-D 1x1", "column + row",
                                               "2-D 1x1"]  # fmt: skip
    assert all(row["received"] == row["messages"] == row["communication"] == 0 for row in rows)


def test_json(simulator: Any) -> None:
    rows = json.loads(
        simulator(f"{SIZE} --ranks 4 --dtype-bytes 8 --flops 1e12 --panel 1024 --json").out
    )
    assert [(row["layers"], row["layout"]) for row in rows] == [
        *((1, name) for name in ("column", "row", "2-D 1x4", "2-D 2x2", "2-D 4x1")),
        *((2, name) for name in ("column + row", "2-D 1x4", "2-D 2x2", "2-D 4x1")),
    ]
    square = rows[3]
    assert (square["rows"], square["inner"], square["columns"], square["ranks"]) == (*[4096] * 3, 4)
    assert square["received"] == 8 * 4096**2 * 3 * (1 / 4 + 1 / 4)
    assert square["messages"] == 6 * 4
    assert square["computation"] == pytest.approx(6 * 4096**3 / 4 / 1e12)
    assert (square["alpha"], square["beta"], square["per_node"]) == (5e-6, 1e-10, None)
    assert square["seconds"] == square["communication"] + square["computation"]
    assert square["memory"] == 2 * (square["weight"] + square["activations"]) + square["panels"]


def test_two_levels(simulator: Any) -> None:
    size = f"{SIZE} --ranks 8 --per-node 4 --inner-alpha 1e-6 --inner-beta 1e-11"
    assert "gamma 0 s/B; in nodes of 4: alpha 1e-06 s" in simulator(size).out
    seconds = {
        row["layout"]: row["communication"] for row in json.loads(simulator(f"{size} --json").out)
    }
    assert seconds["2-D 2x4"] < seconds["2-D 4x2"]  # its rows are nodes
