"""The tables that benchmarks/sharding.py prints: measured, formula, and the goal."""

from collections.abc import Callable, Sequence
from functools import partial

from lib import tables
from lib.tables import MB, MS, RATIO, Column
from lib.timing import Row


def _name(row: Row) -> str:
    micro = f", m {row['micro_batches']}" if row.get("micro_batches", 1) > 1 else ""
    ranks = f"{row['ranks']} rank{'s' * (row['ranks'] > 1)}"
    return f"{ranks}: {row['layout']}{micro}"


table = partial(tables.table, name=_name)
WHOLE_MB = partial(MB, form="{:.1f}")
GOAL = Column("goal", "goal", "{:g}")


def _memory(rows: Sequence[Row]) -> str:
    columns = [
        Column("bytes each", "per_parameter", "{:.2f}"),
        Column("formula", "predicted_per_parameter", "{:.2f}"),
        Column("ratio", "ratio"),
        *(WHOLE_MB("MB", "bytes"), WHOLE_MB("counted", "counted_bytes")),
        *(WHOLE_MB("slots", "slot_bytes"), WHOLE_MB("messages", "message_bytes")),
        WHOLE_MB("activations", "activation_bytes"),
        WHOLE_MB("formula", "predicted_activation_bytes"),
        *(WHOLE_MB("peak", "peak_bytes"), WHOLE_MB("sum", "predicted_peak_bytes")),
        Column("ratio", "peak_ratio"),
        *(WHOLE_MB("resident", "resident_bytes"), Column("ratio", "resident_ratio")),
        Column("bytes each", "resident_per_parameter", "{:.2f}"),
    ]
    title = f"memory of a rank, {rows[0]['parameters'] / 1e6:.1f} million parameters"
    return table(title, columns, rows)


def _bytes(rows: Sequence[Row]) -> str:
    columns = [
        *(MB("MB", "bytes"), MB("formula", "predicted_bytes"), Column("ratio", "ratio", "{:.4f}")),
        *(Column("units", "units", "{:.3f}"), Column("formula", "predicted_units", "{:.3f}")),
        Column("messages", "messages", "{:.0f}"),
        Column("formula", "predicted_messages", "{:.0f}"),
    ]
    return table(f"sent by a rank in a step, {rows[0]['model']}", columns, rows)


def _time(rows: Sequence[Row]) -> str:
    title = f"{rows[0]['model']}, over dp on as many ranks"
    return table(title, [MS("step ms", "seconds"), *RATIO, GOAL], rows)


def _weak(rows: Sequence[Row]) -> str:
    title = f"weak scaling, {rows[0]['model']} and {rows[1]['model']}"
    return table(title, [MS("step ms", "seconds"), *RATIO, GOAL], rows)


def _halo(rows: Sequence[Row]) -> str:
    columns = [MS("step ms", "seconds"), *RATIO, GOAL, MB("MB sent", "bytes")]
    columns += [Column("messages", "messages", "{:.0f}"), WHOLE_MB("peak MB", "peak_bytes")]
    return table(f"an image of {rows[0]['case']}, over 1 rank in bands", columns, rows)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "memory": _memory,
    "bytes": _bytes,
    "time": _time,
    "weak": _weak,
    "halo": _halo,
}
