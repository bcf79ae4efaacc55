"""Options of experiment loggers, such as TensorBoard."""

from dataclasses import dataclass

from nnmpi.options import terms
from nnmpi.options.features import Part
from nnmpi.options.groups import files_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of experiment loggers, such as TensorBoard."""

    logger: str | None = files_option(
        None,
        "send metrics and pictures to tensorboard:FOLDER, mlflow:URI, wandb:PROJECT or "
        "trackio:PROJECT",
        form=terms.logger,
    )


PART = Part(Options)
