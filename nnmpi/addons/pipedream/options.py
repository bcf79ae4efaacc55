"""Options of PipeDream (--schedule pipedream): a pipeline that stays full from batch to batch, each
batch on older weights."""

from dataclasses import dataclass

from nnmpi.options.features import (
    EXACT_SUMS,
    STEPS_TOGETHER,
    WHOLE_MODEL,
    AddOnOptions,
    Feature,
    choice,
)
from nnmpi.options.groups import pipeline_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --vertical-sync of PipeDream (--schedule pipedream): all stages use the version of
    the weights that the first stage used."""

    vertical_sync: bool = pipeline_option(
        False,
        "with --schedule pipedream: all stages use the weight version that the first stage used",
    )


FEATURES = (
    Feature(
        "pipedream",
        choice("schedule", "pipedream"),
        relies_on=(EXACT_SUMS,),
        breaks={
            EXACT_SUMS: "each stage updates its weights while other batches use older ones",
            STEPS_TOGETHER: "batches overlap, so that stages make a step at different times",
            WHOLE_MODEL: "each rank is one stage",
        },
        conflicts={
            "micro_batches": "a batch is one micro-batch and one step",
            "clip_norm": "stages update before the norm of all gradients is known",
            "16 bits": "a stage keeps versions of its parameters in one type",
        },
        remedy="use --schedule 1f1b",
        covers="--schedule pipedream",
    ),
    Feature(
        "vertical_sync",
        requires={"schedule pipedream": "other schedules keep one version of weights"},
    ),
)

ADDED = AddOnOptions(Options, FEATURES, {"schedule": ("pipedream",)})
