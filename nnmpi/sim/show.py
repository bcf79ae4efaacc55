"""Numbers and tables as text."""


def duration(seconds: float) -> str:
    """Seconds with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size * (1 - 1e-12):
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns" if seconds else "0 s"


def amount(nbytes: float) -> str:
    """Bytes in decimal units, as is usual for networks."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.4g} B"


def _three(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 999.5 else f"{x:.3g}"


def columns(rows: list[list[str]]) -> str:
    """Rows of cells as lines: the first cell is to the left of its column, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def plural(n: int, what: str) -> str:
    """`1 rank`, `1,024 ranks`."""
    return f"1 {what}" if n == 1 else f"{n:,} {what}s"
