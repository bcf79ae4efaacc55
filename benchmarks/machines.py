"""Described machines beside published steps: python benchmarks/machines.py --rows FILE.csv
[--draws N] [--limit N] [--json FILE] [--plot FILE]

The rows are those of vTrain (github.com/VIA-Research/vTrain, MIT): steps of Megatron-LM on A100
GPUs, by model, layout and batch. At most five numbers of the machine are fitted to at most 20 rows,
which a seed draws; the errors are those of all other rows, for each of several draws.

    each row   a GPT on paper, with recomputation of blocks, sums that begin after all passes
    fitted     share of the peak, start of a product, share of the memory's rate, least seconds of a
               kernel, share of the links between nodes
"""

import argparse
import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnmpi import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.planning.described import RooflineTimes, machines
from nnmpi.planning.described.description import Description
from nnmpi.planning.exchange_time import ExchangeTimes
from nnmpi.planning.step_time import CostModel, StepTime, step_time
from nnmpi.run.planning.planning import PlanRequest, plan_models
from nnmpi.run.setup.cutting import UncutModel, uncut_of

FITTED = ("products_share", "products_start", "memory_share", "kernel_least", "far_share")
MOST = {"products_share": 1.0, "memory_share": 1.0, "far_share": 1.0}
DRAWN = 20  # rows that are fitted, at most
VOCABULARY = 50257  # of GPT-2, which vTrain's models have
DTYPE = "bfloat16"

COLUMNS = {
    "# GPUs": "ranks",
    "global batch": "batch",
    "micro batch": "micro",
    "hidden size": "width",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "context",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
}


class Published(NamedTuple):
    """A published step: its model and layout as numbers by name, and its seconds."""

    options: Mapping[str, int]
    seconds: float

    @property
    def model(self) -> tuple[int, ...]:
        """What rows of one model on one cluster have in common."""
        return tuple(self.options[k] for k in ("layers", "width", "heads", "ranks", "batch"))


def read(path: Path) -> list[Published]:
    """The rows of a file of vTrain."""
    with path.open(encoding="utf-8-sig") as file:
        return [
            Published(
                {name: int(row[column]) for column, name in COLUMNS.items()},
                float(row["iteration time (ms)"]) / 1e3,
            )
            for row in csv.DictReader(file)
        ]


class Row(NamedTuple):
    """A published step, its arrangement on paper, and the seconds of its units."""

    published: Published
    arrangement: Arrangement
    times: RooflineTimes


@cache
def on_paper(model: str, context: int, batch: int) -> tuple[UncutModel, RooflineTimes]:
    """A GPT on paper, and the seconds of its units; these are the same for all layouts."""
    config = Config(
        model=model,
        context=context,
        batch_size=batch,
        dtype=DTYPE,
        reduce_dtype=DTYPE,
        dropout=0.1,
        bucket_mb=1e6,
        recompute="block",
    )
    _, uncut = uncut_of(config, VOCABULARY)
    machine = machines()["a100-80g"].machine(DTYPE)
    assert machine.sheet is not None
    return uncut, RooflineTimes(uncut.graph, machine, DTYPE, machine.sheet)


def on_a_machine(published: Published, sheet: Description) -> Row:
    """A published step, arranged as Megatron-LM does it: blocks in equal parts, sums at the end."""
    o, machine = published.options, sheet.machine(DTYPE)
    model = f"gpt:{o['layers']}x{o['heads']}x{o['width']}"
    uncut, times = on_paper(model, o["context"], o["batch"])
    nodes = max(o["ranks"] // sheet.ranks, 1)
    cluster = Cluster.on_paper(o["ranks"], nodes, sheet.device)
    request = PlanRequest(o["ranks"], nodes, None, sheet.title)
    arranger = plan_models(request, uncut, cluster, machine).arranger
    begins = {uncut.graph.nodes[unit.nodes.start].name: unit.first for unit in times.units}
    firsts = (f"h.{k * o['layers'] // o['pp']}.ln_1" for k in range(1, o["pp"]))
    layout = replace(
        uncut.config,
        dp=o["dp"],
        tp=o["tp"],
        pp=o["pp"],
        micro_batches=o["batch"] // o["dp"] // o["micro"],
        cut=",".join(str(begins[name]) for name in firsts) or None,
    )
    return Row(published, arranger.arranged_by(layout), times)


def price(row: Row, sheet: Description) -> StepTime:
    """The predicted time of a row."""
    machine = sheet.machine(DTYPE)
    assert machine.sheet is not None
    exchanges = ExchangeTimes(machine, row.arrangement.cluster)
    return step_time(row.arrangement, CostModel(machine, row.times.by(machine.sheet), exchanges))


# ---- the fit


def fitted(rows: Sequence[Row], sheet: Description, rounds: int = 8) -> Description:
    """The description whose prices are nearest to these rows: Levenberg-Marquardt on logarithms,
    with weights that leave outliers out, and a weak pull to the sheet."""
    start = np.log([getattr(sheet, name) for name in FITTED])
    least = np.log([MOST.get(name, 1.0) for name in FITTED])

    def described(x: np.ndarray) -> Description:
        return sheet._replace(**dict(zip(FITTED, np.exp(x).tolist(), strict=True)))

    def errors(x: np.ndarray) -> np.ndarray:
        by = described(x)
        ratios = [price(row, by).seconds / row.published.seconds for row in rows]
        return np.array([*np.log(ratios), *(0.02 * (x - start))])

    def cost(e: np.ndarray) -> float:
        return float(np.sum(np.sqrt(1 + (e / 0.05) ** 2)))

    x, e, damping = start, errors(start), 1e-2
    for _ in range(rounds):
        columns = [(errors(x + 0.02 * np.eye(len(x))[k]) - e) / 0.02 for k in range(len(x))]
        J, weight = np.transpose(columns), 1 / np.sqrt(1 + (e / 0.05) ** 2)
        A, g = J.T @ (weight[:, None] * J), J.T @ (weight * e)
        for _ in range(4):
            step = np.linalg.solve(A + damping * np.diag(np.diag(A) + 1e-9), -g)
            tried = np.minimum(x + np.clip(step, -1, 1), least)
            e_tried = errors(tried)
            if cost(e_tried) < cost(e):
                x, e, damping = tried, e_tried, damping / 5
                break
            damping *= 10
    return described(x)


# ---- the errors


def quality(rows: Sequence[Row], seconds: Sequence[float], drawn: Sequence[int]) -> dict[str, Any]:
    """The errors of the rows that were not drawn, and how far the layout that is predicted to be
    fastest is from the fastest one, by model."""
    published = np.array([row.published.seconds for row in rows])
    signed = np.delete(np.array(seconds) / published - 1, drawn)
    errors = np.abs(signed)
    by_model = dict[tuple[int, ...], list[int]]()
    for k, row in enumerate(rows):
        by_model.setdefault(row.published.model, []).append(k)
    losses = [
        published[min(ks, key=lambda k: seconds[k])] / published[ks].min() - 1
        for ks in by_model.values()
        if len(ks) > 3
    ]
    return {
        "rows": len(errors),
        "mean": errors.mean(),
        "median": np.median(errors),
        "p90": np.quantile(errors, 0.9),
        "worst": errors.max(),
        "bias": signed.mean(),
        "within_10%": int((errors <= 0.1).sum()),
        "fastest_loses_at_most": max(losses, default=0.0),
    }


def drawn_rows(n: int, seed: int) -> list[int]:
    """The rows that a seed draws for the fit."""
    return sorted(random.Random(seed).sample(range(n), min(DRAWN, n // 2)))


def plot(path: Path, rows: Sequence[Row], seconds: Sequence[float], drawn: Sequence[int]) -> None:
    """Draws predicted against published seconds, a point a row."""
    from matplotlib import pyplot as plt

    published = [row.published.seconds for row in rows]
    ends = [min(published) * 0.8, max(published) * 1.25]
    figure, axes = plt.subplots(figsize=(5.2, 5), constrained_layout=True)
    others = [k for k in range(len(rows)) if k not in drawn]
    axes.fill_between(
        ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color="0.9", label="10%"
    )
    for name, ks, marker in (("not fitted", others, "."), ("fitted", drawn, "x")):
        axes.plot([published[k] for k in ks], [seconds[k] for k in ks], marker, label=name)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="seconds of a step, published", ylabel="seconds of a step, predicted")
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rows", type=Path, required=True, help="a file of vTrain")
    p.add_argument("--machine", default="a100-80g", choices=list(machines()))
    p.add_argument("--draws", type=int, default=5, help="draws of the fitted rows (default 5)")
    p.add_argument("--limit", type=int, help="take so many rows only, drawn by seed 1")
    p.add_argument("--json", type=Path)
    p.add_argument("--plot", type=Path, help="of the first draw")
    options = p.parse_args()
    published, sheet = read(options.rows), machines()[options.machine]
    if options.limit and options.limit < len(published):
        published = random.Random(1).sample(published, options.limit)
    rows = [on_a_machine(row, sheet) for row in published]
    records = list[dict[str, Any]]()
    for seed in range(options.draws):
        drawn = drawn_rows(len(rows), seed)
        by = fitted([rows[k] for k in drawn], sheet)
        seconds = [price(row, by).seconds for row in rows]
        figures = quality(rows, seconds, drawn)
        numbers = {name: float(f"{getattr(by, name):.3g}") for name in FITTED}
        records.append({"benchmark": "machines", "case": options.rows.stem, "seed": seed,
                        **figures, **numbers})  # fmt: skip
        shown = (f"{k} {v:.1%}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"draw {seed}:", ", ".join(shown), numbers, flush=True)
        if options.plot and not seed:
            plot(options.plot, rows, seconds, drawn)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1, default=float))


if __name__ == "__main__":
    main()
