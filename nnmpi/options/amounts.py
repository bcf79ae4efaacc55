"""Formats counts, bytes and seconds as text."""


def plural(n: int, noun: str, ending: str = "s") -> str:
    """Formats a count with its noun: `1 rank`, `1,024 ranks`."""
    return f"{n:,} {noun}{ending * (n != 1)}"


def duration(seconds: float) -> str:
    """Formats seconds as text with three digits, in s, ms, us or ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size * (1 - 1e-12):
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns" if seconds else "0 s"


def amount(nbytes: float) -> str:
    """Formats a number of bytes in decimal units (kB, MB, GB), as usual for networks."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.4g} B"


def in_column(nbytes: int) -> str:
    """Formats bytes in kB or MB with one decimal, for columns."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"


def _three(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 999.5 else f"{x:.3g}"


def three_or_none(x: float | None) -> str:
    """Formats a number with three digits, whole from 1000 on; None as `-`."""
    return "-" if x is None else _three(x)
