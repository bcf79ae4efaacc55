"""The tables that benchmarks/pipeline.py prints: measured, expected, and the goal."""

from collections.abc import Callable, Sequence
from functools import partial

from lib import tables
from lib.tables import MB, MS, RATIO, SHARE, Column
from lib.timing import Row


def _name(row: Row) -> str:
    how = row.get("subject") or row["schedule"] or f"dp {row['dp']}"
    how = f"pp {row['pp']}" if row["case"] == "wide" and row["pp"] > 1 else how
    again = ", recompute" if row.get("recompute") else ""
    return f"{row['case']}, m {row['micro_batches']}, {how}{again}"


table = partial(tables.table, name=_name)
SIMULATED = (Column("simulated", "predicted_ratio"), SHARE("of it", "of_predicted"))


def _speed_up(rows: Sequence[Row]) -> str:
    shares = {
        f"{r['case']}: {r['model']}; cut at {r['cut']}; the stages have "
        f"{r['stage_0_share']:.1%} and {r['stage_1_share']:.1%} of the time, "
        f"{'within' if r['balanced'] else 'not within'} 5% of each other"
        for r in rows
        if "stage_0_share" in r
    }
    columns = [MS("step ms", "seconds"), *RATIO, Column("ideal", "ideal_ratio")]
    columns += [SHARE("of ideal", "of_ideal"), *SIMULATED, SHARE("goal", "goal")]
    return "\n".join([table("speed-up over 1 rank", columns, rows), *sorted(shares)])


def _schedules(rows: Sequence[Row]) -> str:
    columns = [MS("step ms", "seconds"), MS("simulated ms", "predicted_seconds"), *RATIO]
    columns += [*SIMULATED, SHARE("bubble", "bubble"), SHARE("simulated", "predicted_bubble")]
    note = "ratio: over the line above where m is 2 or 4, over one rank where it is 8"
    return f"{table('schedules', columns, rows)}\n{note}"


def _memory(rows: Sequence[Row]) -> str:
    columns = [MB("MB", "bytes"), MB("simulated", "predicted_bytes"), Column("ratio", "ratio")]
    columns += [Column("simulated", "predicted_ratio"), Column("goal", "goal")]
    return table("activations of stage 0", columns, rows)


def _recompute(rows: Sequence[Row]) -> str:
    columns = [MS("step ms", "seconds"), *RATIO, Column("formula", "predicted_ratio")]
    columns += [Column("simulated", "simulated_ratio"), MB("MB", "bytes")]
    columns += [MB("simulated", "predicted_bytes"), Column("ratio", "bytes_ratio")]
    return table("recompute, 1 rank", columns, rows)


def _bytes(rows: Sequence[Row]) -> str:
    columns = [
        MB("MB", "bytes"),
        MB("formula", "predicted_bytes"),
        Column("ratio", "ratio", "{:.4f}"),
    ]
    columns += [Column("formula", "predicted_ratio", "{:.4f}")]
    return table(f"bytes sent in a step, {rows[0]['model']}", columns, rows)


def _network(rows: Sequence[Row]) -> str:
    columns = [MS("step ms", "seconds"), MS("bytes alone ms", "wire_seconds"), *RATIO]
    rate = rows[0]["bits_per_second"] / 1e9
    return table(f"2 hosts, {rate:g} Gbit/s, {rows[0]['model']}", columns, rows)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "speed-up": _speed_up,
    "schedules": _schedules,
    "memory": _memory,
    "recompute": _recompute,
    "bytes": _bytes,
    "network": _network,
}
