"""Draws the roofline of a described machine: python scripts/draw_roofline.py

The roofs are the machine's own figures; each point is a kernel of a block of a transformer, with
the operations and bytes of nnmpi.addons.planning.described.roofline. Needs matplotlib: pip install
'nnmpi[plot]'.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from lib import panels  # noqa: E402

from nnmpi.addons.planning.described.description import (  # noqa: E402
    BYTES_UPDATED,
    HALVES,
    Description,
    description_named,
)
from nnmpi.options import cli  # noqa: E402

PICTURE = str(ROOT / "docs" / "roofline.png")
WIDTH = 2  # bytes of a 16-bit number
D = 4096
TOKENS = 1, 16, 128, 1024, 8192


class Kernel(NamedTuple):
    """A kernel with its operations, the bytes that it reads and writes, and the seconds that it
    takes besides."""

    name: str
    operations: float
    nbytes: float
    start: float = 0.0

    def rate(self, machine: Description, dtype: str) -> float:
        """The operations a second that the model of a machine expects."""
        computing = self.operations / machine.rate(dtype) + self.start
        return self.operations / max(computing, self.nbytes / machine.moved)


def kernels(machine: Description) -> Mapping[str, list[Kernel]]:
    """The kernels by what they are: a linear layer at several numbers of tokens, and others."""
    linear = [
        Kernel(f"{n:,}", 2.0 * n * D * D, WIDTH * (2 * n * D + D * D), machine.products_start)
        for n in TOKENS
    ]
    moving = [
        Kernel("Adam", 12, BYTES_UPDATED["adam"] + 4),
        Kernel("layer norm", 7, 2 * WIDTH),
    ]
    return {f"linear layer {D} x {D}, by tokens": linear, "kernels that move bytes": moving}


def draw(name: str, out: str) -> None:
    """Writes the picture."""
    from matplotlib.figure import Figure

    machine = description_named(name)
    if machine is None:
        raise ValueError(f"{name} was measured: give a described machine")
    dtype = next((name for name in reversed(HALVES) if name in machine.peak), "float32")
    rate, moved = machine.rate(dtype), machine.moved
    ridge, ends = rate / moved, (0.1, 10_000.0)
    figure = Figure(figsize=(panels.ACROSS, 5), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot([ends[0], ridge, ends[1]], [ends[0] * moved, rate, rate], color="black")
    axes.axvline(ridge, color="0.7", linestyle=":")
    for marker, (label, of_label) in zip("os", kernels(machine).items(), strict=True):
        points = [(k.operations / k.nbytes, k.rate(machine, dtype)) for k in of_label]
        axes.plot(*zip(*points, strict=True), marker, label=label)
        for kernel, point in zip(of_label, points, strict=True):
            axes.annotate(kernel.name, point, (6, -12), textcoords="offset points", size=11)
    axes.legend(loc="upper left", frameon=False, fontsize=12)
    note = {"textcoords": "offset points", "size": 11, "color": "0.3"}
    roof = f"products: {rate / 1e12:.0f} Tflop/s"
    axes.annotate(roof, (ends[1], rate), (-4, 6), ha="right", **note)
    slope = f"memory: {moved / 1e12:.2g} TB/s"
    axes.annotate(slope, (4.0, 4.0 * moved), (-6, 6), ha="right", **note)
    axes.annotate(f"{ridge:.0f} operations a byte", (ridge, rate / 3e3), (6, 0), **note)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(rate / 5e3, 3 * rate))
    axes.set_xlabel("operations for each byte that is read or written", size=12)
    panels.style(axes)
    panels.title(axes, f"{machine.title}: operations a second, {dtype}")
    figure.savefig(out, dpi=panels.DPI)


def main(arguments: Sequence[str]) -> int:
    """Draws the picture, and returns the exit status: 2 for unusable arguments."""
    parser = cli.Parser(prog="draw_roofline.py", description="Draw the roofline of a machine.")
    parser.add_argument("--machine", default="a100-80g", help="a description")
    parser.add_argument("-o", "--out", default=PICTURE, help="a picture (docs/roofline.png)")
    try:
        options = parser.parse_args(arguments)
        if problem := cli.picture_problem(options.out):
            raise ValueError(problem)
        draw(options.machine, options.out)
    except (OSError, ValueError) as error:
        return cli.fail("draw_roofline.py", error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
