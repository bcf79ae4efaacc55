"""Draws what each way of cutting a transformer sends and holds: python scripts/draw_cuts.py
With --zero it draws what a rank holds with ZeRO 0 to 3, on 8 ranks.

The figures come from `python -m nnmpi.simulate layout`, with each rank on a node of its own. The
PNG also contains them as JSON, under the key Description. Needs matplotlib: pip install
'nnmpi[plot]'.
"""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from lib import panels  # noqa: E402

from nnmpi import simulate  # noqa: E402
from nnmpi.options import cli  # noqa: E402

PICTURE = str(ROOT / "docs" / "cuts.png")
MODEL = "--model gpt:6x6x384 --data text --context 256 --batch-size 8"
CUTS = (
    "--dp {}",
    *(f"--dp {{}} --zero {stage}" for stage in (1, 2, 3)),
    "--tp {}",
    "--tp {} --sequence-parallel",
    "--cp {}",
    "--pp {} --micro-batches 4",
)
RANKS = 2, 4
ZERO_RANKS = 8

Bytes: TypeAlias = Mapping[str, int]


class Part(NamedTuple):
    """The look of a part of a bar; its hatch distinguishes it where there is no colour."""

    colour: str
    hatch: str = ""


PARTS = {
    "parameters": Part("#0072b2"),
    "gradients": Part("#e69f00", "///"),
    "optimizer": Part("#eeeeee", "\\\\\\"),
    "activations": Part("#cfe8f7"),
    "keys and values": Part("#009e73", "xxx"),
    "message buffers": Part("#ffffff", "...."),
}


class Row(NamedTuple):
    """A layout, the bytes that its busiest rank sends in a step, and the bytes that its fullest
    rank holds, both by kind."""

    options: str
    sent: Bytes
    messages: int
    held: Bytes


def rows() -> list[Row]:
    """The rows of one rank, and of each cut."""
    cuts = (cut.format(n) for cut in CUTS for n in RANKS)
    counts = (n for _ in CUTS for n in RANKS)
    return [row_of("", 1), *map(row_of, cuts, counts)]


def row_of(options: str, ranks: int) -> Row:
    """The row of one layout."""
    words = f"layout --json --ranks {ranks} --nodes {ranks} {MODEL} {options}"
    given = simulate.parser().parse_args(shlex.split(words))
    kinds: Sequence[Any] = given.run(given)["kinds"]
    sends = max(kinds, key=lambda kind: sum(there["bytes"] for there in kind["sent"].values()))
    messages = sum(there["messages"] for there in sends["sent"].values())
    held = (holding(kind) for kind in kinds)
    return Row(options, sending(sends), messages, max(held, key=lambda parts: sum(parts.values())))


def sending(kind: Any) -> Bytes:
    """The bytes that a rank sends, by kind; a few scalars are counted with the gradients."""
    along = {axis: there["bytes"] for axis, there in kind["sent"].items()}
    parameters = kind["parameters_sent"]["bytes"]
    return {
        "parameters": parameters,
        "gradients": along["dp"] - parameters + along["model"],
        "activations": along["tp"] + along["pp"],
        "keys and values": along["cp"],
    }


def holding(kind: Any) -> Bytes:
    """The bytes in the memory of a rank, by kind."""
    return {
        "parameters": kind["parameters_bytes"],
        "gradients": kind["gradients_bytes"],
        "optimizer": kind["optimizer_bytes"],
        "activations": kind["activation_bytes"],
        "message buffers": sum(kind[f"{name}_bytes"] for name in ("slots", "windows", "buffers")),
    }


# ---- the picture


def draw(found: Sequence[Row], path: str) -> None:
    """Draws two panels with a bar for each layout: bytes sent in a step, and bytes held."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panels.ACROSS, 15), layout="constrained")
    panels.heading(figure, f"{MODEL}:\nfloat32, Adam, each rank on a node of its own")
    sent, held = figure.subplots(2)
    at = [*places(found)]
    for axes, what in ((sent, "sent"), (held, "held")):
        bars(axes, at, [getattr(row, what) for row in found])
        panels.style(axes, "x")
        axes.set_yticks(at, [row.options or "one rank" for row in found], size=12)
        axes.set_ylim(at[-1] + 1, -1)
    panels.title(sent, "A rank sends: MB in messages")
    panels.title(held, "A rank holds: MB")
    sends = [f"{mb(row.sent)} in {row.messages:,}" if row.messages else "0" for row in found]
    label(sent, at, [row.sent for row in found], sends)
    label(held, at, [row.held for row in found], [mb(row.held) for row in found])
    one = sum(found[0].held.values()) / 1e6
    held.axvline(one, color="black", linewidth=1.2, linestyle="--")
    legend(figure)
    figure.savefig(path, dpi=panels.DPI, metadata={"Description": json.dumps(found)})


def draw_zero(path: str) -> None:
    """Draws a bar for each stage of ZeRO: bytes held, by kind; letters fit a phone."""
    from matplotlib.figure import Figure

    options = [f"--dp {ZERO_RANKS} --zero {stage}" for stage in range(4)]
    held = [row_of(one, ZERO_RANKS).held for one in options]
    figure = Figure(figsize=(panels.ACROSS, 3.6), layout="constrained")
    axes = figure.subplots()
    bars(axes, range(4), held)
    panels.style(axes, "x")
    panels.title(axes, f"MB held by each of {ZERO_RANKS} ranks")
    label(axes, range(4), held, [f"{mb(parts)} MB" for parts in held])
    axes.set_yticks(range(4), [f"--zero {stage}" for stage in range(4)], size=12)
    axes.set_ylim(3.6, -0.6)
    legend(figure, but="keys and values")
    figure.savefig(path, dpi=panels.DPI, metadata={"Description": MODEL})


def places(found: Sequence[Row]) -> Iterator[float]:
    """The position of each bar; bars of the same cut stand together."""
    for i in range(len(found)):
        yield i + 0.5 * ((i + 1) // len(RANKS))


def bars(axes: Any, at: Sequence[float], parts: Sequence[Bytes]) -> None:
    """Draws the parts of each bar one after the other."""
    ends = [0.0] * len(parts)
    for name, (colour, hatch) in PARTS.items():
        widths = [part.get(name, 0) / 1e6 for part in parts]
        look = {"color": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}
        axes.barh(at, widths, 0.9, ends, **look)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]


def label(axes: Any, at: Sequence[float], parts: Sequence[Bytes], texts: Sequence[str]) -> None:
    """Writes a text after each bar."""
    ends = [sum(part.values()) / 1e6 for part in parts]
    for end, y, text in zip(ends, at, texts, strict=True):
        near = {"textcoords": "offset points", "va": "center", "size": 11}
        axes.annotate(text, (end, y), (5, 0), **near)
    axes.set_xlim(0, 1.3 * max(ends))


def mb(parts: Bytes) -> str:
    return f"{sum(parts.values()) / 1e6:.1f}"


def legend(figure: Any, but: str = "") -> None:
    """Names the parts, all but one, below the panels."""
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=name)
        for name, (colour, hatch) in PARTS.items()
        if name != but
    ]
    place = {"loc": "outside lower center", "ncols": 3}
    figure.legend(handles=patches, **place, frameon=False, fontsize=12)


def main(arguments: Sequence[str]) -> int:
    """Draws the picture, and returns the exit status: 2 for unusable arguments."""
    parser = cli.Parser(prog="draw_cuts.py", description="Draw what each cut sends and holds.")
    parser.add_argument("-o", "--out", default=PICTURE, help="a .png file (default docs/cuts.png)")
    parser.add_argument("--zero", action="store_true", help="what a rank holds with ZeRO 0 to 3")
    try:
        given = parser.parse_args(arguments)
        if problem := cli.picture_problem(given.out):
            raise ValueError(problem)
        if given.zero:
            draw_zero(given.out)
        else:
            draw(rows(), given.out)
    except (OSError, ValueError) as error:
        return cli.fail("draw_cuts.py", error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
