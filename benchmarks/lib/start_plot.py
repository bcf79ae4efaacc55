"""The plot of benchmarks/start.py: processor time of a start, and the formulas fitted to it."""

import math
from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np

from lib import panels
from lib.timing import Row

TERMS = {"1": lambda p: 1.0, "log2 p": math.log2, "p": float}
DRAWN = 100_000


def fit(ranks: Sequence[int], seconds: Sequence[float]) -> dict[str, float]:
    """The coefficients of the terms, none negative, with the least squared relative error."""
    weight = 1 / np.maximum(seconds, 1e-9)
    columns = {name: np.array([f(p) for p in ranks]) * weight for name, f in TERMS.items()}
    best = math.inf, dict.fromkeys(TERMS, 0.0)
    for names in chain.from_iterable(combinations(TERMS, n) for n in range(1, 4)):
        a = np.stack([columns[name] for name in names], axis=1)
        x = np.linalg.lstsq(a, np.ones(len(ranks)), rcond=None)[0]
        if x.min() >= 0:
            error = float(((a @ x - 1) ** 2).sum())
            best = min(
                best,
                (error, dict.fromkeys(TERMS, 0.0) | dict(zip(names, x.tolist(), strict=True))),
                key=lambda pair: pair[0],
            )
    return best[1]


def predicted(formula: dict[str, float], ranks: float) -> float:
    """The seconds of a formula."""
    return sum(formula[name] * f(ranks) for name, f in TERMS.items())


def draw(rows: Sequence[Row], path: str) -> None:
    """Processor time over ranks: measured as dots, formulas as lines up to 100,000 ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panels.ACROSS, 6), layout="constrained")
    axes = figure.subplots()
    xs = np.geomspace(2, DRAWN, 60)
    for phase in dict.fromkeys(row["case"] for row in rows):
        of_phase = [row for row in rows if row["case"] == phase]
        dots = [row["ranks"] for row in of_phase], [row["processor_seconds"] for row in of_phase]
        formula = fit(*dots)
        line = axes.plot(xs, [predicted(formula, x) for x in xs], label=phase, linewidth=2)[0]
        axes.plot(*dots, "o", color=line.get_color())
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("ranks", size=12)
    panels.style(axes, "both")
    panels.title(axes, "Processor seconds of a rank; lines: fitted")
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=12)
    figure.savefig(path, dpi=panels.DPI)
