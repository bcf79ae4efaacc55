"""Draws stored rows anew: python benchmarks/draw.py benchmarks/results/NAME.json ... OUT.png

It draws the plot of the benchmark that wrote the rows; of training.py and language.py, whose files
may be given together, the time of a step over that of PyTorch. Nothing is measured.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lib import start_plot, steps_plot, text_plot
from lib.collectives import plot as collectives
from lib.communication import plot as communication
from lib.scaling import plot as scaling
from lib.timing import Row

ON_TWO_RANKS = ("MPI_Allreduce", "ring", "tree", "auto", "window")
"""The all-reduces that are drawn anew: on two ranks halving lies under the ring."""


def _collectives(rows: Sequence[Row], path: str) -> None:
    first = next(row for row in rows if row["case"] == "all_reduce")
    where = f"{first['ranks']} ranks on {first['hosts']} host, {first['cpu']}, {first['mpi']}"
    shown = [row for row in rows if row.get("algorithm") in (None, *ON_TWO_RANKS)]
    collectives.draw(shown, ON_TWO_RANKS, where, path)


PLOTS: dict[str, Callable[[Sequence[Row], str], None]] = {
    "training": steps_plot.draw,
    "language": steps_plot.draw,
    "scaling": scaling.draw,
    "collectives": _collectives,
    "communication": communication.draw,
    "start": start_plot.draw,
    "text": text_plot.draw,
}
"""By the benchmark that wrote the rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="files of --json")
    parser.add_argument("out", help="the picture (.png, .svg, .pdf)")
    a = parser.parse_args()
    rows = [row for path in a.results for row in json.loads(path.read_text(encoding="utf-8"))]
    drawn = [row for row in rows if row["benchmark"] in PLOTS]
    if len({PLOTS[row["benchmark"]] for row in drawn}) != 1:
        parser.error(f"{', '.join(map(str, a.results))}: give rows of one of {', '.join(PLOTS)}")
    PLOTS[drawn[0]["benchmark"]](drawn, a.out)


if __name__ == "__main__":
    main()
