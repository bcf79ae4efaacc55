"""A plot of stored training steps: nnmpi's time over that of PyTorch at its best, case by case."""

from collections.abc import Sequence

from lib import panels
from lib.timing import Row

TORCH = ("T", "T*", "T+", "compile")
"""PyTorch as users write it, and in its faster forms."""

NAMES = {
    "W1": "CNN, 28x28",
    "W2": "MLP 784-1024-1024-10",
    "W3": "MLP 4-50-3",
    "W4": "CNN, 32x32",
    "W5": "residual CNN",
    "W6": "depthwise CNN",
    "W7": "autoencoder",
    "lstm": "LSTM on numbers",
    "lstm-text": "LSTM on characters",
    "gpt-128": "GPT, width 128",
    "gpt-384": "GPT, width 384",
}


def draw(rows: Sequence[Row], path: str) -> None:
    """A bar for each case, the smallest ratio first; PyTorch at its best is a line at 1."""
    from matplotlib.figure import Figure

    ours = [row for row in rows if row.get("subject") == "nnmpi" and row["case"] in NAMES]
    best = {row["case"]: max(row[f"ratio to {name}"] for name in TORCH) for row in ours}
    cases = sorted(best, key=best.__getitem__, reverse=True)
    figure = Figure(figsize=(panels.ACROSS, 0.9 + 0.4 * len(cases)), layout="constrained")
    axes = figure.subplots()
    for y, case in enumerate(cases):
        axes.barh(y, best[case], 0.72, color=panels.BLUE)
        inside = {"va": "center", "color": "white", "weight": "bold", "size": 12}
        at = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{best[case]:.2f}", (best[case], y), **at, **inside)
    axes.axvline(1, color="black", linewidth=2)
    near = {"xytext": (-4, 6), "textcoords": "offset points", "ha": "right", "size": 12}
    axes.annotate("PyTorch at its best: 1", (1, len(cases) - 0.5), **near)
    axes.set_yticks(range(len(cases)), [NAMES[case] for case in cases])
    axes.set_ylim(-0.6, len(cases) + 0.3)
    axes.set_xlim(0, 1.02)
    panels.style(axes, "x")
    panels.title(axes, "Time of nnmpi's training step on one core")
    figure.savefig(path, dpi=panels.DPI)
