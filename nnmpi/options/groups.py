"""The groups of options, such as "model" and "layout". For each group there is a function like
`model_option`, which makes the dataclass field of an option in it."""

from functools import partial

from nnmpi.options import resume_rules as rules
from nnmpi.options.option import option

model_option = partial(option, "model", resume=rules.ANOTHER_MODEL)
data_option = partial(option, "data", resume=rules.OTHER_SAMPLES)
training_option = partial(option, "training", resume=rules.OTHER_STEPS)
layout_option = partial(option, "layout", resume=rules.OTHER_RANKS)
pipeline_option = partial(option, "pipeline", resume=rules.OTHER_RANKS)
reduce_option = partial(option, "reduce", resume=rules.OTHER_RANKS)
sync_option = partial(option, "sync", resume=rules.OTHER_RANKS)
equality_option = partial(option, "equality", resume=rules.OTHER_OUTPUT)
files_option = partial(option, "files", resume=rules.OTHER_OUTPUT)
checkpoints_option = partial(option, "checkpoints", resume=rules.OTHER_OUTPUT)
other_option = partial(option, "other", resume=rules.OTHER_OUTPUT)

GROUPS = (
    *("model", "data", "training", "layout", "pipeline", "reduce"),
    *("sync", "equality", "files", "checkpoints", "other"),
)
"""The groups, in the order of --help."""
