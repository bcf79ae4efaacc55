"""Described machines beside published steps: python benchmarks/machines.py [--rows FILE.csv ...]
[--table NAME ...] [--draws N] [--limit N] [--json FILE] [--plot FILE] [--from FILE ...]

--rows are files of vTrain, --table one of benchmarks/published/. A few numbers of the machine are
fitted to a few rows, which a seed draws: five to 20 rows of vTrain, one to one row of the other
tables. The errors are those of all other rows, for each draw, and of all rows for the description
as it is. --plot draws predicted against published seconds, also --from files of --json.

    each row   a GPT on paper, arranged as its source says
    fitted     share of the peak; of vTrain also the start of a product, the share of the memory's
               rate, seconds to launch a kernel, the share of the links between nodes
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

import numpy as np
from lib import panels, published
from lib.published import Published, Row, Table, price

from nnmpi.addons.planning.described.description import Description

MOST = {"products_share": 1.0, "memory_share": 1.0, "far_share": 1.0}
AS_IS = "as it is"
OFF = 0.05  # an error of a row from which on it counts by its size, not by its square
PULL = 0.1  # of a number to the sheet: a factor of e costs as much as a row that is 10% off


def priced(steps: Sequence[Published], table: Table) -> list[Row]:
    """The rows of a table, arranged; prints what it takes to arrange and price one: seconds of a
    processor, for the first one of a model with its tracing, and the peak memory of this process.
    """
    rows, seconds = list[Row](), list[float]()
    for step in steps:
        begin = process_time()
        rows.append(published.on_a_machine(step, table))
        price(rows[-1], table.sheet)
        seconds.append(process_time() - begin)
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1e3
    longest = f"at most {max(seconds):.2f} s, {peak:.0f} MB"
    print(f"{table.name}: a price takes {np.median(seconds):.2f} s (median), {longest}")
    return rows


# ---- the fit


def fitted(
    rows: Sequence[Row], sheet: Description, names: Sequence[str], rounds: int = 8
) -> Description:
    """The description whose prices are nearest to these rows: Levenberg-Marquardt on logarithms,
    with errors that count by their size if they are large, and a weak pull to the sheet."""
    start = np.log([getattr(sheet, name) for name in names])
    most = np.log([MOST.get(name, 1.0) for name in names])

    def described(x: np.ndarray) -> Description:
        return sheet._replace(**dict(zip(names, np.exp(x).tolist(), strict=True)))

    def errors(x: np.ndarray) -> np.ndarray:
        by = described(x)
        ratios = [price(row, by).seconds / row.published.seconds for row in rows]
        return np.array([*np.log(ratios), *(PULL * (x - start))]) / OFF

    def cost(e: np.ndarray) -> float:
        return float(np.sum(np.sqrt(1 + e**2)))

    x, e, damping = start, errors(start), 1e-2
    for _ in range(rounds):
        columns = [(errors(x + 0.02 * np.eye(len(x))[k]) - e) / 0.02 for k in range(len(x))]
        J, weight, best = np.transpose(columns), 1 / np.sqrt(1 + e**2), cost(e)
        A, g = J.T @ (weight[:, None] * J), J.T @ (weight * e)
        for _ in range(4):
            step = np.linalg.solve(A + damping * np.diag(np.diag(A)), -g)
            tried = np.minimum(x + np.clip(step, -1, 1), most)
            e_tried = errors(tried)
            if cost(e_tried) < cost(e):
                x, e, damping = tried, e_tried, damping / 5
                break
            damping *= 10
        if cost(e) > best - 1e-3:
            break
    return described(x)


def drawn_rows(n: int, count: int, seed: int) -> list[int]:
    """The rows that a seed draws for the fit."""
    return sorted(random.Random(seed).sample(range(n), min(count, n // 2)))


# ---- the errors


def quality(rows: Sequence[Row], seconds: Sequence[float], drawn: Sequence[int]) -> dict[str, Any]:
    """The errors of the rows that were not drawn, and how much longer than the fastest layout the
    one takes that is predicted to be fastest, at most over the models."""
    true = np.array([row.published.seconds for row in rows])
    signed = np.delete(np.array(seconds) / true - 1, drawn)
    errors = np.abs(signed)
    return {
        "rows": len(errors),
        "mean": errors.mean(),
        "median": np.median(errors),
        "p90": np.quantile(errors, 0.9),
        "worst": errors.max(),
        "bias": signed.mean(),
        "within_10%": int((errors <= 0.1).sum()),
        "fastest_loses_at_most": max(losses(rows, seconds).values(), default=0.0),
    }


def losses(rows: Sequence[Row], seconds: Sequence[float]) -> Mapping[tuple[int, ...], float]:
    """How much longer than its fastest layout each model takes in the one predicted to be fastest;
    of models with more than three layouts."""
    by_model = defaultdict[tuple[int, ...], list[tuple[float, float]]](list)
    for row, predicted in zip(rows, seconds, strict=True):
        by_model[row.published.model].append((predicted, row.published.seconds))
    return {
        model: min(pairs)[1] / min(true for _, true in pairs) - 1
        for model, pairs in by_model.items()
        if len(pairs) > 3
    }


def records_of(table: Table, rows: Sequence[Row], draws: int) -> list[dict[str, Any]]:
    """The errors and points of a table: as the machine is described, and for each draw."""
    names, count = table.common["fitted"], table.common["drawn"]
    records = []
    for case in (AS_IS, *(range(draws) if count else ())):
        drawn = [] if case == AS_IS else drawn_rows(len(rows), count, int(case))
        sheet = fitted([rows[k] for k in drawn], table.sheet, names) if drawn else table.sheet
        seconds = [price(row, sheet).seconds for row in rows]
        figures = quality(rows, seconds, drawn)
        numbers = {name: float(f"{getattr(sheet, name):.3g}") for name in names}
        shown = (f"{k} {v:.1%}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"{table.title}, {case}:", ", ".join(shown), numbers, flush=True)
        points = [
            [row.published.seconds, float(f"{s:.5g}"), int(k in drawn)]
            for k, (row, s) in enumerate(zip(rows, seconds, strict=True))
        ]
        if case not in (AS_IS, 0):
            points = []  # which are not drawn
        records.append({"benchmark": "machines", "case": table.name, "title": table.title,
                        "seed": case, **figures, **numbers, "points": points})  # fmt: skip
    return records


def plot(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Draws predicted against published seconds, a point a row: above as machines are
    described, below the first draw, without the rows that were fitted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panels.ACROSS, 11.5), layout="constrained")
    both: Any = figure.subplots(2)
    every = [x for r in records for point in r["points"] for x in point[:2]]
    ends = [min(every) * 0.8, max(every) * 1.25]
    titles = "Machines as described", "Fitted to some rows"
    for axes, seed, title in zip(both, (AS_IS, 0), titles, strict=True):
        axes.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color="0.88",
                          label="within 10%")  # fmt: skip
        for k, name in enumerate(dict.fromkeys(r["title"] for r in records)):
            of_title = [r for r in records if (r["title"], r["seed"]) == (name, seed)]
            points = [p[:2] for r in of_title for p in r["points"] if not p[2]]
            marker = "..osD^vP"[k]
            style = {"ms": 5 if marker == "." else 7, "mfc": "none", "color": f"C{k}"}
            axes.plot(
                *zip(*points, strict=True) if points else ([], []), marker, label=name, **style
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set_xlabel("published seconds of a step", size=12)
        axes.set_ylabel("predicted seconds", size=12)
        panels.style(axes, "both")
        panels.title(axes, title)
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower left", ncols=2,
                  frameon=False, fontsize=12)  # fmt: skip
    figure.savefig(path, dpi=panels.DPI)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rows", type=Path, nargs="+", default=[], help="files of vTrain")
    p.add_argument("--table", nargs="+", default=[], choices=published.NAMES)
    p.add_argument("--draws", type=int, default=5, help="draws of the fitted rows (default 5)")
    p.add_argument("--limit", type=int, help="take so many rows of a table only, drawn by seed 1")
    p.add_argument("--json", type=Path)
    p.add_argument("--plot", type=Path)
    p.add_argument("--from", type=Path, nargs="+", default=[], dest="earlier")
    options = p.parse_args()
    tables = [*map(published.read_vtrain, options.rows), *map(published.read_table, options.table)]
    records = [record for path in options.earlier for record in json.loads(path.read_text())]
    for table in tables:
        steps = table.steps
        if options.limit and options.limit < len(steps):
            steps = random.Random(1).sample(steps, options.limit)
        rows = priced(steps, table)
        records += records_of(table, rows, options.draws)
    if options.json:
        options.json.write_text(json.dumps(records, default=float) + "\n")
    if options.plot:
        plot(options.plot, records)


if __name__ == "__main__":
    main()
