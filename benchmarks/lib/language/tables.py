"""The tables that benchmarks/language.py prints."""

from collections.abc import Callable, Sequence
from functools import partial

import training

from lib import tables
from lib.tables import MB, MS, RATIO, Column
from lib.timing import Row

GOAL = Column("goal", "goal", "{:g}")


def _steps(rows: Sequence[Row]) -> str:
    to = partial(Column, form="{:.2f}")
    ratios = [
        to(f"to {name}", f"ratio to {name}")
        for name in (*training.PEERS, *training.NARROW_PEERS, "best")
    ]
    columns = [MS("cpu ms", "cpu_seconds"), *ratios, Column("best", "best", "{}")]
    return tables.table(
        "a step on one core", columns, rows, lambda row: f"{row['case']} {row['subject']}"
    )


def _memory(rows: Sequence[Row]) -> str:
    columns = MB("MB", "bytes"), MB("held", "held_bytes"), MB("T x T matrices", "matrix_bytes")
    return tables.table("causal attention", columns, rows, lambda row: str(row["case"]))


def _generation(rows: Sequence[Row]) -> str:
    columns = [Column("tokens/s", "tokens_per_second", "{:,.0f}"), *RATIO]
    title = f"generation by {rows[0]['case']}"
    return tables.table(title, columns, rows, lambda row: str(row["subject"]))


def _scaling(rows: Sequence[Row]) -> str:
    columns = [
        MS("step ms", "seconds"),
        Column("tokens/s", "tokens_per_second", "{:,.0f}"),
        *(*RATIO, GOAL),
    ]
    return tables.table(
        "over one rank",
        columns,
        rows,
        lambda row: f"{row['model']}, {row['dtype']}: {row['layout']}",
    )


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "steps": _steps,
    "memory": _memory,
    "generation": _generation,
    "weak": _scaling,
    "context": _scaling,
}
