"""The plot of benchmarks/text_training.py: loss over epochs, of training and of held-out text."""

from collections.abc import Sequence

from lib import panels
from lib.timing import Row

COLOURS = (panels.BLUE, "#d55e00", "#009e73", "#cc79a7")
LINES = {"loss": "-", "test_loss": "--"}


def draw(rows: Sequence[Row], path: str) -> None:
    """A colour for each subject; the first seed of each is drawn."""
    from matplotlib.figure import Figure

    first = rows[0]
    figure = Figure(figsize=(panels.ACROSS, 4), layout="constrained")
    panels.heading(figure, f"{first['model']}, --lr-schedule {first['lr_schedule']}")
    axes = figure.subplots()
    seed = first["seed"]
    for subject, colour in zip(dict.fromkeys(r["subject"] for r in rows), COLOURS, strict=False):
        own = [row for row in rows if (row["subject"], row["seed"]) == (subject, seed)]
        epochs = [row["epoch"] for row in own]
        for name, line in LINES.items():
            losses = [row[name] for row in own]
            label = f"{subject}, {name.replace('_', ' ')}: {losses[-1]:.2f}"
            axes.plot(epochs, losses, line, color=colour, linewidth=2.2, label=label)
    panels.style(axes, "both")
    panels.title(axes, "Loss after each epoch")
    axes.legend(frameon=False, fontsize=12)
    figure.savefig(path, dpi=panels.DPI)
