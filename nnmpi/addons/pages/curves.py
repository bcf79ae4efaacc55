"""The curves of a run: rows of numbers, such as {"step": 10, "loss": 0.5}, from the events of its
log.

epochs        one row per epoch
steps         within epochs: loss, learning rate, norm of the gradient, speed (--log-every)
evaluations   losses and metrics within epochs, and at their ends (--evaluate-every)
"""

from collections.abc import Iterable
from typing import NamedTuple

from nnmpi.io.output.messages import Event

AXES = {"epochs": "epoch", "steps": "steps", "seconds": "seconds"}
"""The quantities on the x axis of curves, with their keys in events."""

FEW = 10
"""With fewer epochs than this, values of steps are drawn in place of means over epochs."""

OF_STEPS = {
    "epoch": "epoch",
    "step": "steps",
    "seconds": "seconds",
    "loss": "loss",
    "lr": "lr",
    "gradient_norm": "mean_gradient_norm",
    "samples_per_second": "epoch_samples_per_second",
    "tokens_per_second": "epoch_tokens_per_second",
}
"""The numbers in the event of a step, with their keys in the event of an epoch."""


class Curves(NamedTuple):
    """The curves of a run, as lists of rows of numbers: by epoch, by step, and by evaluation."""

    epochs: list[Event]
    steps: list[Event]
    evaluations: list[Event]

    @property
    def has_few_epochs(self) -> bool:
        """True if the run has so few epochs that its steps are drawn instead."""
        return len(self.epochs) < FEW


def _add(rows: list[Event], row: Event) -> None:
    """Appends a row; first removes those of steps that a resumed run repeats."""
    while rows and rows[-1]["steps"] >= row["steps"]:
        rows.pop()
    rows.append(row)


def curves(events: Iterable[Event]) -> Curves:
    """Returns the curves of a run, given all events of its log; users' metrics have keys "metric
    NAME". `evaluations` is empty unless there were some within epochs."""
    made, of_kind = Curves([], [], []), {"epoch": list[Event](), "evaluation": list[Event]()}
    for e in events:
        if e["event"] == "step":
            _add(made.steps, {new: e[old] for old, new in OF_STEPS.items() if old in e})
        elif e["event"] in of_kind:
            metrics = {f"metric {name}": value for name, value in e.get("metrics", {}).items()}
            row = {**e, "steps": e.get("step", e["steps"]), **metrics}
            of_kind[e["event"]].append(row)
            _add(made.evaluations, row)
    made.epochs.extend(of_kind["epoch"])
    keys = {key for row in of_kind["evaluation"] for key in row} - {"event", "step"}
    rows = [{key: row[key] for key in keys & row.keys()} for row in made.evaluations]
    return made._replace(evaluations=rows if keys else [])
