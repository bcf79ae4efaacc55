"""The option --logger, which sends metrics to an experiment logger such as TensorBoard."""

from dataclasses import dataclass

from nnmpi.options import terms
from nnmpi.options.features import Part
from nnmpi.options.groups import files_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --logger, which sends metrics and pictures to an experiment logger such as
    TensorBoard."""

    logger: str | None = files_option(
        None,
        "send metrics and pictures to tensorboard:FOLDER, mlflow:URI, wandb:PROJECT or "
        "trackio:PROJECT",
        form=terms.logger,
    )


PART = Part(Options)
