"""The report of a run on a GPU, of its rows alone: tables in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from lib.gpu.rows import Row

BROKEN = ("error", "failed")
"""Units of rows that say what failed."""

STEPS = ("loops", "trainers", "PyTorch")
"""The sections whose cases are WORKLOAD, NUMBERS, FORM, and which have one table."""

REHEARSAL = "**A rehearsal on the emulated device: no time in this report means anything.**"


def text(rows: Sequence[Row]) -> str:
    """The report, also of a run that has not ended."""
    parts = [REHEARSAL] if any(row.emulated for row in rows) else []
    parts += ["# A GPU in some minutes", *broken(rows), *steps(rows)]
    sections = dict.fromkeys(row.section for row in rows if row.section not in ("plan", *STEPS))
    for name in sections:
        found = [row for row in rows if row.section == name and is_figure(row)]
        if found:
            parts += [f"## {name}", table(["case", "figure", "unit", "more"], map(line, found))]
    return "\n\n".join([*parts, *left_out(rows), *missing(rows)]) + "\n"


def is_figure(row: Row) -> bool:
    return row.unit not in (*BROKEN, "left out")


def broken(rows: Sequence[Row]) -> list[str]:
    found = [row for row in rows if row.unit in BROKEN]
    lines = ([row.section, row.case, row.unit, more(row)] for row in found)
    return ["## Failed", table(["section", "case", "", "why"], lines)] if found else []


def steps(rows: Sequence[Row]) -> list[str]:
    """A line for each workload and type, and a column for each form of its step."""
    found = {row.case: row for row in rows if row.section in STEPS and is_figure(row)}
    keys = [tuple(case.rsplit(", ", 2)) for case in found]
    forms = [*dict.fromkeys(form for _, _, form in keys)]
    lines = []
    for workload, numbers in dict.fromkeys((w, n) for w, n, _ in keys):
        cells = [found.get(f"{workload}, {numbers}, {form}") for form in forms]
        lines.append([workload, numbers, *(number(row.figure) if row else "" for row in cells)])
    if not lines:
        return []
    details = [[case, more(row)] for case, row in found.items()]
    return [
        "## Steps, ms",
        table(["workload", "numbers", *forms], lines),
        "<details><summary>More of each step</summary>\n",
        table(["step", "more"], details),
        "</details>",
    ]


def left_out(rows: Sequence[Row]) -> list[str]:
    """The cases that this machine cannot measure, by the reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.unit == "left out":
            reasons.setdefault((row.section, row.more["why"]), []).append(row.case)
    lines = ([section, why, "; ".join(cases)] for (section, why), cases in reasons.items())
    return ["## Left out", table(["section", "why", "cases"], lines)] if reasons else []


def missing(rows: Sequence[Row]) -> list[str]:
    """What did not fit into the time."""
    known = {(row.section, row.case) for row in rows}
    lines = []
    for plan in (row for row in rows if row.section == "plan"):
        left = [case for case in plan.more["cases"] if (plan.case, case) not in known]
        if left:
            lines.append([plan.case, str(len(left)), "; ".join(left)])
    return ["## Did not fit into the time", table(["section", "", "cases"], lines)] if lines else []


def line(row: Row) -> list[str]:
    return [row.case, number(row.figure), row.unit, more(row)]


def number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def more(row: Row) -> str:
    return "; ".join(f"{key} {number(value)}" for key, value in row.more.items())


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, in whose cells a bar is no border."""
    cells = [[cell.replace("|", "\\|") for cell in each] for each in (head, *lines)]
    cells.insert(1, ["-"] * len(head))
    return "\n".join(f"| {' | '.join(each)} |" for each in cells)
