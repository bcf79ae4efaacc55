"""Loggers: callbacks that write what a run says for TensorBoard, MLflow, Weights & Biases, Trackio.

>>> Trainer(config, callbacks=[nnmpi.loggers.TensorBoard("runs/1")])

The first rank alone writes: options and the layout, the loss of each step, the numbers of each
epoch, and at the end the drawings of the layout and of the epochs. `--logger tensorboard:runs/1` is
the same. Libraries of others are imported when the first step is over, each by its own logger.
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

from nnmpi.io.output import Event, LostOutputError
from nnmpi.io.output.plot import epochs_figure
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.terms import LOGGERS, logger
from nnmpi.parallel.arrangement import drawing
from nnmpi.parallel.arrangement.arrangement import Arrangement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 500  # steps that are written together


class Logger:
    """The base class of loggers; each says how its library takes a thing, or leaves it out."""

    library = ""

    def __init__(self, where: str, **options: Any) -> None:
        if not find_spec(self.library):
            lacks = f"{self.library} is not installed: pip install 'nnmpi[loggers]'"
            raise ValueError(f"logger {type(self).__name__}: {lacks}")
        self.where, self.options = where, options
        self._module: Any = None
        self._losses: dict[int, dict[str, float]] = {}
        self._epochs: list[Event] = []

    def on_step(self, trainer: Any, event: Event) -> None:
        """The loss."""
        if trainer.is_first:
            self._begin(trainer)
            self._losses[event["step"]] = {"loss": event["loss"]}
            if len(self._losses) == MANY:
                self._write_losses()

    def on_epoch(self, trainer: Any, event: Event) -> None:
        """The numbers of the epoch."""
        if trainer.is_first:
            self._begin(trainer)
            self._write_losses()
            self._epochs.append(event)
            self.scalars({event["steps"]: numbers(event)})

    def on_end(self, trainer: Any, event: Event) -> None:
        """The drawings; the library writes what it has."""
        if self._module is None:
            return
        self._write_losses()
        about = {"model": trainer.config.model, "data": trainer.describe()["data"]}
        with redirect_stdout(sys.stderr):
            if figure := epochs_figure(about, self._epochs):
                self.figure("epochs", figure, event["steps"])
            self.end()
        self._module, self._epochs = None, []

    def _begin(self, trainer: Any) -> None:
        if self._module is not None:
            return
        options = {k: v for k, v in asdict(trainer.config).items() if v is not None}
        with redirect_stdout(sys.stderr):  # which may be for JSON
            try:
                self._module = importlib.import_module(self.library)
                self.begin({**options, "ranks": trainer.comm.size})
            except Exception as error:  # of a library: a wrong address, a folder of others
                why, *_ = traceback.format_exception_only(error)[0].splitlines()
                failure = f"{type(self).__name__}: cannot write to {shown(self.where)}"
                raise LostOutputError(f"{failure}: {why}") from error
            self.layout(trainer.arrangement, trainer.step)

    def _write_losses(self) -> None:
        if self._losses:
            self.scalars(self._losses)
        self._losses = {}

    def begin(self, options: Mapping[str, Any]) -> None:
        """A run begins."""

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Numbers by their names, for each of these steps."""

    def layout(self, a: Arrangement, step: int) -> None:
        """Who has what."""

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """A picture."""

    def end(self) -> None:
        """The run is over."""


def numbers(event: Event) -> dict[str, float]:
    """The numbers of the event of an epoch, as epoch/loss; its own number is epoch/epoch."""
    items = ((key, v) for key, v in event.items() if not isinstance(v, bool))
    return {f"epoch/{key}": float(v) for key, v in items if isinstance(v, int | float)}


class TensorBoard(Logger):
    """Files of events in a folder, by tensorboardX."""

    library = "tensorboardX"

    def begin(self, options: Mapping[str, Any]) -> None:
        """Options are a text."""
        self._to = self._module.SummaryWriter(self.where, **self.options)
        rows = "".join(f"| {name} | {value} |\n" for name, value in options.items())
        self._to.add_text("config", f"| option | value |\n|-|-|\n{rows}")

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """One by one."""
        for step, row in rows.items():
            for name, value in row.items():
                self._to.add_scalar(name, value, step)
        self._to.flush()

    def layout(self, a: Arrangement, step: int) -> None:
        """As text: it draws no SVG."""
        lines = "\n".join(drawing.as_lines(a))
        self._to.add_text("layout", f"```\n{lines}\n```", step)

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """As an image."""
        self._to.add_figure(name, figure, step, close=False)

    def end(self) -> None:
        """Closes the file."""
        self._to.close()


class MLflow(Logger):
    """A run of a tracking server, or of a database as sqlite:///mlflow.db."""

    library = "mlflow"

    def __init__(self, where: str, experiment: str = "nnmpi", **options: Any) -> None:
        super().__init__(where, **options)
        self.experiment = experiment

    def begin(self, options: Mapping[str, Any]) -> None:
        """The experiment is made if there is none."""
        self._to = self._module.MlflowClient(tracking_uri=self.where)
        known = self._to.get_experiment_by_name(self.experiment)
        of = known.experiment_id if known else self._to.create_experiment(self.experiment)
        self._run = self._to.create_run(of, **self.options).info.run_id
        params = [self._module.entities.Param(k, str(v)) for k, v in options.items()]
        self._to.log_batch(self._run, params=params)

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """In one message."""
        now, metric = int(time.time() * 1000), self._module.entities.Metric
        named = [(k, v, step) for step, row in rows.items() for k, v in row.items()]
        self._to.log_batch(self._run, [metric(k, v, now, step) for k, v, step in named])

    def layout(self, a: Arrangement, step: int) -> None:
        """As an artifact."""
        self._to.log_text(self._run, drawing.as_svg({a.config.model: a}), "layout.svg")

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """As an artifact."""
        self._to.log_figure(self._run, figure, f"{name}.png")

    def end(self) -> None:
        """The run is finished."""
        self._to.set_terminated(self._run)


class Trackio(Logger):
    """A run of a project; options are those of its `init`."""

    library = "trackio"
    quiet: Mapping[str, Any] = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}

    def begin(self, options: Mapping[str, Any]) -> None:
        """A new run of the project."""
        how = {**self.quiet, **self.options}
        self._to = self._module.init(project=self.where, config=dict(options), **how)

    def scalars(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """A message for each step."""
        for step, row in rows.items():
            self._to.log(dict(row), step=step)

    def layout(self, a: Arrangement, step: int) -> None:
        """A page."""
        svg = drawing.as_svg({a.config.model: a})
        self._to.log({"layout": self._module.Html(svg)}, step=step)

    def figure(self, name: str, figure: "Figure", step: int) -> None:
        """As an image."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        self._to.log({name: self._module.Image(pixels)}, step=step)

    def end(self) -> None:
        """Waits until it is written."""
        self._module.finish()  # that of the run would say so again when Python ends


class WandB(Trackio):
    """A run of a project of Weights & Biases, whose functions Trackio has too."""

    library = "wandb"
    quiet: Mapping[str, Any] = {}


KINDS: dict[str, type[Logger]] = dict(
    zip(LOGGERS, (TensorBoard, MLflow, WandB, Trackio), strict=True)
)
"""By the names of --logger."""


def loggers_of(config: Config) -> list[Logger]:
    """The loggers that --logger asks for."""
    if config.logger is None:
        return []
    name, where = logger(config.logger)
    return [KINDS[name](where)]
