"""Loggers: callbacks that write what a run reports to TensorBoard, MLflow, Weights & Biases or
Trackio.

>>> Trainer(config, callbacks=[nnmpi.loggers.TensorBoard("runs/1")])

Only rank 0 writes: the options, the layout of the model over ranks, the numbers of steps
(--log-every), evaluations and epochs, and at the end a drawing of the run.
`--logger tensorboard:runs/1` does the same. Each logger imports its library after the first step.
"""

import importlib
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from nnmpi.addons.pages.plot import run_figure
from nnmpi.addons.planning import layout_lines, layout_svg
from nnmpi.io.output import Event, LostOutputError
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.value_forms import LOGGERS, logger
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.run.training import RunParts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITE_SECONDS = 10.0
"""Seconds between two writes of the numbers of steps; a write may be a message to a server."""

MOST_EVENTS = 2000
"""Most events that the drawing of the run shows; at this number every second one is dropped."""


class Logger:
    """The base class of loggers: it collects numbers and decides when they are written. A subclass
    names its library, and writes with it in begin, scalars, layout, figure and end.

    where: the folder, server or project to which the run is written
    options: keyword arguments for the library's function that begins a run
    """

    library = ""

    def __init__(self, where: str, **options: Any) -> None:
        if not find_spec(self.library):
            lacks = f"{self.library} is not installed: pip install 'nnmpi[loggers]'"
            raise ValueError(f"logger {type(self).__name__}: {lacks}")
        self.where, self.options = where, options
        self._module: Any = None
        self._rows: dict[int, dict[str, float]] = {}  # that are not written yet, by step
        self._written = 0.0
        self._events: list[Event] = []

    def on_log(self, trainer: Any, event: Event) -> None:
        """Collects the numbers of a "step" event; writes all collected ones every WRITE_SECONDS."""
        self._note(trainer, event, event["step"], "")
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def on_evaluate(self, trainer: Any, event: Event) -> None:
        """Writes the loss and metrics of an evaluation to the logger's library."""
        self._note(trainer, event, event["step"], "evaluation/")
        self._write()

    def on_epoch(self, trainer: Any, event: Event) -> None:
        """Writes the loss, metrics and speed of an epoch to the logger's library."""
        self._note(trainer, event, event["steps"], "epoch/")
        self._write()

    def on_end(self, trainer: Any, event: Event) -> None:
        """Writes the drawing of the run, and ends the run of the library."""
        if self._module is None:
            return
        self._write()
        about = {"model": trainer.config.model, "data": trainer.describe()["data"]}
        with redirect_stdout(sys.stderr):
            if figure := run_figure(about, self._events):
                self.figure("epochs", figure, event["steps"])
            self.end()
        self._module, self._events = None, []

    def _note(self, trainer: Any, event: Event, step: int, prefix: str) -> None:
        if trainer.is_first:
            self._begin(trainer)
            if len(self._events) == MOST_EVENTS:
                del self._events[::2]
            self._events.append(event)
            self._rows.setdefault(step, {}).update(numbers(event, prefix))

    def _begin(self, trainer: Any) -> None:
        if self._module is not None:
            return
        options = {k: v for k, v in asdict(trainer.config).items() if v is not None}
        with redirect_stdout(sys.stderr):  # stdout may be for JSON, and libraries print
            try:
                self._module = importlib.import_module(self.library)
                self.begin({**options, "ranks": trainer.comm.size})
            except Exception as error:  # of any kind: a wrong address, no permission
                why, *_ = traceback.format_exception_only(error)[0].splitlines()
                failure = f"{type(self).__name__}: cannot write to {shown(self.where)}"
                raise LostOutputError(f"{failure}: {why}") from error
            self.layout(trainer.arrangement, trainer.step)

    def _write(self) -> None:
        if self._rows:
            self.scalars(self._rows)
        self._rows, self._written = {}, time.monotonic()

    def begin(self, options: Mapping[str, Any]) -> None:
        """Begins a run in the logger's library, and passes it the options of training."""

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Writes the numbers in `rows`, which maps each step to its numbers by name."""

    def layout(self, a: Arrangement, step: int) -> None:
        """Writes a drawing of the layout: which part of the model and the batch each rank has."""

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """Writes a matplotlib figure under a name."""

    def end(self) -> None:
        """Ends the run that `begin` has begun in the logger's library."""


def numbers(event: Event, prefix: str) -> dict[str, float]:
    """Returns the numbers in an event by keys with `prefix`, such as "epoch/loss", without the step
    and epoch of a step's event, under which loggers write it."""
    skipped = ("step", "steps", "epoch") if "step" in event else ()
    items = ((k, v) for k, v in event.items() if k not in skipped and not isinstance(v, bool))
    return {f"{prefix}{key}": float(v) for key, v in items if isinstance(v, int | float)}


class TensorBoard(Logger):
    """A logger that writes TensorBoard event files into a folder, by tensorboardX."""

    library = "tensorboardX"

    def begin(self, options: Mapping[str, Any]) -> None:
        """Opens the file, and writes the options as a table."""
        self._to = self._module.SummaryWriter(self.where, **self.options)
        rows = "".join(f"| {name} | {value} |\n" for name, value in options.items())
        self._to.add_text("config", f"| option | value |\n|-|-|\n{rows}")

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Writes the numbers of each step, one by one."""
        for step, row in rows.items():
            for name, value in row.items():
                self._to.add_scalar(name, value, step)
        self._to.flush()

    def layout(self, a: Arrangement, step: int) -> None:
        """Writes the layout as text, since TensorBoard shows no SVG."""
        lines = "\n".join(layout_lines.as_lines(a))
        self._to.add_text("layout", f"```\n{lines}\n```", step)

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """Writes a matplotlib figure as an image."""
        self._to.add_figure(name, figure, step, close=False)

    def end(self) -> None:
        """Closes the file."""
        self._to.close()


class MLflow(Logger):
    """A logger that writes a run to an MLflow tracking server, or to a database such as
    sqlite:///mlflow.db."""

    library = "mlflow"

    def __init__(self, where: str, experiment: str = "nnmpi", **options: Any) -> None:
        super().__init__(where, **options)
        self.experiment = experiment

    def begin(self, options: Mapping[str, Any]) -> None:
        """Creates a run, and the experiment if there is none."""
        self._to = self._module.MlflowClient(tracking_uri=self.where)
        known = self._to.get_experiment_by_name(self.experiment)
        of = known.experiment_id if known else self._to.create_experiment(self.experiment)
        self._run = self._to.create_run(of, **self.options).info.run_id
        params = [self._module.entities.Param(k, str(v)) for k, v in options.items()]
        self._to.log_batch(self._run, params=params)

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Writes the numbers of all steps in one message to the server."""
        now, metric = int(time.time() * 1000), self._module.entities.Metric
        named = [(k, v, step) for step, row in rows.items() for k, v in row.items()]
        self._to.log_batch(self._run, [metric(k, v, now, step) for k, v, step in named])

    def layout(self, a: Arrangement, step: int) -> None:
        """Writes the layout as an SVG artifact."""
        self._to.log_text(self._run, layout_svg.as_svg({a.config.model: a}), "layout.svg")

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """Writes a matplotlib figure as a PNG artifact."""
        self._to.log_figure(self._run, figure, f"{name}.png")

    def end(self) -> None:
        """Marks the run as finished."""
        self._to.set_terminated(self._run)


class Trackio(Logger):
    """A logger that writes a run of a Trackio project; `options` are passed to `trackio.init`."""

    library = "trackio"
    quiet: Mapping[str, Any] = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}

    def begin(self, options: Mapping[str, Any]) -> None:
        """Begins a new run of the project."""
        how = {**self.quiet, **self.options}
        self._to = self._module.init(project=self.where, config=dict(options), **how)

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Writes the numbers of each step in a message of their own."""
        for step, row in rows.items():
            self._to.log(dict(row), step=step)

    def layout(self, a: Arrangement, step: int) -> None:
        """Writes the layout as an HTML page."""
        self._to.log(
            {"layout": self._module.Html(layout_svg.as_svg({a.config.model: a}))}, step=step
        )

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """Writes a matplotlib figure as an image."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        self._to.log({name: self._module.Image(pixels)}, step=step)

    def end(self) -> None:
        """Waits until everything is written."""
        self._module.finish()  # the run's own finish() would be called again when Python ends


class WandB(Trackio):
    """A logger for a Weights & Biases project; its library has the functions of Trackio."""

    library = "wandb"
    quiet: Mapping[str, Any] = {}


LOGGER_TYPES: dict[str, type[Logger]] = dict(
    zip(LOGGERS, (TensorBoard, MLflow, WandB, Trackio), strict=True)
)
"""The loggers by their names in --logger."""


def loggers_of(config: Config) -> list[Logger]:
    """Returns the loggers that the option --logger names, such as tensorboard:runs/1."""
    assert config.logger is not None
    name, where = logger(config.logger)
    return [LOGGER_TYPES[name](where)]


PARTS = RunParts(callbacks=loggers_of)
