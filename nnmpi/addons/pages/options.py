"""The options --report, which writes an HTML page about a run at its end, and --logger, which sends
metrics to an experiment logger such as TensorBoard."""

from dataclasses import dataclass

from nnmpi.options import value_forms
from nnmpi.options.features import AddOnOptions, OutputFile
from nnmpi.options.groups import files_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options --report and --logger."""

    logger: str | None = files_option(
        None,
        "send metrics and pictures to tensorboard:FOLDER, mlflow:URI, wandb:PROJECT or "
        "trackio:PROJECT",
        form=value_forms.logger,
    )
    report: str | None = files_option(
        None, "at the end, write a page about the run, by default to run.html", bare="run.html"
    )


PAGE = OutputFile("report", "a page", lambda head: head[:1] == b"<")
ADDED = AddOnOptions(Options, outputs=(PAGE,))
