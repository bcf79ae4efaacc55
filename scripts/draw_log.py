"""Plot a training log: python scripts/draw_log.py run.jsonl run.png (needs nnmpi[plot])."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(log: str, picture: str) -> None:
    """Plot the loss above and the accuracy below, by epoch."""
    events = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    start = next(e for e in events if e["event"] == "start")
    epochs = [e for e in events if e["event"] == "epoch"]
    x = [e["epoch"] for e in epochs]
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(6.4, 5.2), layout="constrained"
    )
    above.plot(x, [e["loss"] for e in epochs], "o-", label="training")
    above.plot(x, [e["test_loss"] for e in epochs], "s-", label="test")
    above.set(ylabel="loss", yscale="log", title=f"{start['model']} on {start['data']}")
    above.legend()
    below.plot(x, [100 * e["accuracy"] for e in epochs], "s-", color="C1")
    best = 100 * epochs[-1]["accuracy"]
    below.annotate(
        f"{best:.1f} %", (x[-1], best), xytext=(0, -22), textcoords="offset points", ha="right"
    )
    below.set(xlabel="epoch", ylabel="test accuracy (%)")
    below.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, below):
        axes.grid(alpha=0.3, which="both")
    figure.savefig(picture, dpi=130)
    print(f"accuracy {best:.2f} % on {start['test_samples']:,} samples after {x[-1]} epochs")


if __name__ == "__main__":
    main(*sys.argv[1:3])
