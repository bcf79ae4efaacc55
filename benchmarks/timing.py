"""Timing for all benchmarks: interleaved rounds, medians, ratios, flat JSON rows."""

import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
Step = Callable[[], Any]


class Sample(NamedTuple):
    """Seconds per call: processor time of this thread, and wall-clock time."""

    cpu: float
    wall: float


def measure(f: Callable[[], object], calls: int) -> Sample:
    """The mean over `calls` consecutive calls."""
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(calls):
        f()
    return Sample((time.thread_time() - cpu) / calls, (time.perf_counter() - wall) / calls)


def calls_for(f: Callable[[], object], seconds: float) -> int:
    """The number of calls that take about `seconds`, after a warm-up."""
    f()
    f()
    return max(1, int(seconds / max(measure(f, 1).wall, 1e-7)))


def median(samples: Sequence[Sample]) -> Sample:
    """The median of each figure."""
    return Sample(*(statistics.median(column) for column in zip(*samples, strict=True)))


def ratio(a: Sequence[Sample], b: Sequence[Sample]) -> float:
    """The median over rounds of a's processor time over b's, which ran back to back."""
    return statistics.median(x.cpu / y.cpu for x, y in zip(a, b, strict=True))


def machine() -> Row:
    """The machine and software that a figure belongs to."""
    import numpy as np

    from nnmpi import blas

    return {
        "cpu": blas.cpu().name or platform.processor(),
        "cpu_family": blas.cpu().family,
        "cores": os.cpu_count(),
        "blas_core": blas.core(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write_rows(path: str | None, rows: Sequence[Row]) -> None:
    """Write a JSON list with one flat object per measurement."""
    if path:
        Path(path).write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")
        print(f"{len(rows)} rows written to {path}", file=sys.stderr)


def size_name(nbytes: float) -> str:
    """256 B, 4 KB, 64 MB: in powers of 1024."""
    for unit in ("B", "KB", "MB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GB"


def size(text: str) -> int:
    """Parse a number of bytes: 256, 4KB or 64 MB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is not a size: use a form like 256, 4KB or 64MB")
    return round(float(found[1]) * 1024 ** " KMG".index(found[2].upper() or " "))
