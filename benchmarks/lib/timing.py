"""Timing for all benchmarks: interleaved rounds, medians, ratios, flat JSON rows."""

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
Step = Callable[[], Any]

BUSY = 0.5  # the load of other processes a core from which figures are not reliable


class Sample(NamedTuple):
    """Seconds per call: processor time of all threads of this process, and wall-clock time."""

    cpu: float
    wall: float


def measure(f: Callable[[], object], calls: int) -> Sample:
    """The mean over `calls` consecutive calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        f()
    return Sample((time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls)


def calls_for(f: Callable[[], object], seconds: float) -> int:
    """The number of calls that take about `seconds`, after a warm-up."""
    f()
    f()
    return max(1, int(seconds / max(measure(f, 1).wall, 1e-7)))


def median(samples: Sequence[Sample]) -> Sample:
    """The median of each figure."""
    return Sample(*(statistics.median(column) for column in zip(*samples, strict=True)))


class Spread(NamedTuple):
    """The median of a figure over rounds, and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        if len(figures) < 2:
            return cls(figures[0], figures[0], figures[0])
        return cls(*statistics.quantiles(figures, n=4, method="inclusive"))


def ratio(a: Sequence[float], b: Sequence[float]) -> Spread:
    """a over b in each round, in which they ran back to back."""
    return Spread.of([x / y for x, y in zip(a, b, strict=True)])


def median_interval(figures: Sequence[float]) -> tuple[float, float]:
    """Where the median of the figures would be in 19 of 20 measurements like this one, whatever
    their distribution: ranks n/2 -+ 0.98 sqrt(n) of the sorted figures."""
    ordered, n = sorted(figures), len(figures)
    lo = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return ordered[lo], ordered[n - 1 - lo]


def warn_if_busy(facts: Row) -> None:
    """Says so if other processes were running before the benchmark began."""
    load, cores = facts["load_before"], facts["cores"]
    if load > BUSY * cores:
        print(
            f"warning: the load is {load:g} on {cores} cores: other processes are running, and "
            "slow some subjects down more than others; repeat this on a quiet machine",
            file=sys.stderr,
        )


def trust(rows: Sequence[Row]) -> str:
    """How far ratios differ from round to round; empty if no row tells.

    A figure has its quartiles beside it, under its name with _low and _high.
    """
    half = [
        ((row[f"{key}_high"] - row[f"{key}_low"]) / 2 / row[key], row)
        for row in rows
        for key in row
        if f"{key}_low" in row and row[key]
    ]
    if not half:
        return ""
    median = statistics.median(width for width, _ in half)
    widest, row = max(half, key=lambda pair: pair[0])
    names = [str(row[k]) for k in ("case", "section", "layout", "subject", "algorithm") if k in row]
    return (
        f"ratios are good to about {median:.1%} (half of the rounds lie within that of the "
        f"median; at worst {widest:.1%}, {' '.join(names)})"
    )


def machine() -> Row:
    """The machine and software that a figure belongs to."""
    import numpy as np

    from nnmpi.arrays import blas

    return {
        "cpu": blas.cpu().get("model name") or platform.processor(),
        "cpu_family": int(blas.cpu().get("cpu family", 0)),
        "cores": os.cpu_count(),
        "blas_core": blas.core(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": round(os.getloadavg()[0], 1),
    }


def finish(path: str | None, rows: Sequence[Row]) -> None:
    """Print how far figures can be trusted, and write a flat JSON object per measurement."""
    if text := trust(rows):
        print(text, file=sys.stderr)
    if path:
        Path(path).write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")
        print(f"{len(rows)} rows written to {path}", file=sys.stderr)


def size_name(nbytes: float) -> str:
    """256 B, 4 KiB, 64 MiB: in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"
