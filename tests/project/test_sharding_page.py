"""docs/sharding-measured.md: every figure of its measured tables is in the results file."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sharding-measured.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results" / "sharding-zen5.json"
Row = dict[str, Any]
Cells = Iterator[list[str]]


def two(value: float) -> str:
    return f"{value:.2f}"


def mb(value: float) -> str:
    return f"{value / 1e6:.1f}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def quartiles(row: Row, key: str = "ratio") -> str:
    return f"{row[f'{key}_low']:.2f} to {row[f'{key}_high']:.2f}"


def layout(row: Row) -> str:
    """Its options, and how many ranks and micro-batches."""
    axes = " ".join(f"--{axis} {row[axis]}" for axis in ("dp", "pp", "tp") if row[axis] > 1)
    zero = f" --zero {row['zero']}" if row["zero"] else ""
    shared = " --allreduce shared" if row["algorithm"] == "shared" else ""
    micro = f", m = {row['micro_batches']}" if row["micro_batches"] > 1 else ""
    return f"`{axes}{zero}{shared}`{micro}" if axes else "1 rank"


def memory(rows: Sequence[Row]) -> Cells:
    for row in rows:
        parts = ("slot_bytes", "message_bytes", "activation_bytes", "predicted_activation_bytes")
        yield [
            *(layout(row), two(row["per_parameter"]), two(row["predicted_per_parameter"])),
            *(f"{row['ratio'] - 1:+.1%}", mb(row["bytes"]), *(mb(row[key]) for key in parts)),
            *(mb(row["peak_bytes"]), mb(row["predicted_peak_bytes"])),
        ]


def sent(rows: Sequence[Row]) -> Cells:
    for row in rows:
        units = [two(row[key]) if key in row else "" for key in ("units", "predicted_units")]
        found = [f"{row[key] / 1e6:.2f}" for key in ("bytes", "predicted_bytes")]
        messages = [f"{row[key]:.0f}" for key in ("messages", "predicted_messages")]
        yield [layout(row), *found, *units, *messages]


def seconds(rows: Sequence[Row]) -> Cells:
    for row in rows:
        ratio = [two(row["ratio"]), quartiles(row)] if "ratio" in row else ["1", ""]
        yield [layout(row), str(row["ranks"]), ms(row["seconds"]), *ratio, goal(row)]


def goal(row: Row) -> str:
    return f"{row['goal']:g}" if "goal" in row else ""


SCALING = {
    "tp 2": "MLP, `--tp 2`",
    "apart": "MLP, without messages",
    "image": "image, cut by rows",
    "half an image": "image, without messages",
}


def scaling(rows: Sequence[Row]) -> Cells:
    for row in rows:
        if row["layout"] in SCALING:
            name = SCALING[row["layout"]]
            yield [name, ms(row["seconds"]), two(row["ratio"]), quartiles(row), goal(row)]


TABLES: dict[str, tuple[tuple[str, ...], Callable[[Sequence[Row]], Cells]]] = {
    "| MB of a rank | bytes each | formula | off by | held | slots | messages | activations "
    "| formula | peak | sum |": (("memory",), memory),
    "| sent by a rank in a step | MB | formula | units | formula | messages | formula |": (
        ("bytes",),
        sent,
    ),
    "| step | ranks | time | over dp | quartiles | goal |": (("time",), seconds),
    "| 2 ranks over 1 | step | ratio | quartiles | goal |": (("weak", "halo"), scaling),
}
"""The header of each table, the sections that it shows, and its lines."""


def lines(header: str, rows: Sequence[Row]) -> list[str]:
    """A table as it is on the page."""
    sections, cells = TABLES[header]
    found = cells([row for row in rows if row["section"] in sections])
    rule = "|" + "-|" * (header.count("|") - 1)
    return [header, rule, *(f"| {' | '.join(line)} |" for line in found)]


@pytest.mark.parametrize("header", TABLES)
def test_a_table_is_as_measured(header: str) -> None:
    assert f"{RESULTS.stem}.json`" in PAGE
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.count(f"\n{header}\n") == 1
    shown = PAGE[PAGE.index(header) :].split("\n\n")[0].splitlines()
    assert shown == lines(header, rows)
