"""Options of runs that write checkpoints, or continue from one."""

from dataclasses import dataclass

from nnmpi.options import value_forms
from nnmpi.options.features import AddOnOptions, Feature
from nnmpi.options.groups import checkpoints_option
from nnmpi.options.value_forms import FROM_1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of runs that write checkpoints, or continue from one."""

    checkpoint_dir: str | None = checkpoints_option(
        None, "directory for the checkpoints of all ranks"
    )
    save_every: str | None = checkpoints_option(
        None,
        "write a checkpoint every N steps (100), seconds (600s) or epochs ('2 epochs'), while "
        "training continues",
        form=value_forms.interval,
    )
    keep: int = checkpoints_option(2, "number of checkpoints to keep, the newest ones", FROM_1)
    keep_best: str | None = checkpoints_option(
        None,
        "also keep the checkpoint of the evaluation in which this measure was best",
        choices=("test_loss", "accuracy"),
    )
    resume: bool = checkpoints_option(
        False, "continue from the newest complete checkpoint in --checkpoint-dir, on any ranks"
    )
    time_limit: str | None = checkpoints_option(
        None,
        "end before the run has lasted this long (90s, 30m, 2h), with a checkpoint and status 75",
        form=value_forms.duration,
    )


FEATURES = (
    Feature("save_every", requires={"checkpoint_dir": "checkpoints are written there"}),
    Feature("keep", requires={"checkpoint_dir": "checkpoints are kept there"}),
    Feature("keep_best", requires={"checkpoint_dir": "checkpoints are kept there"}),
    Feature("resume", requires={"checkpoint_dir": "it continues from a checkpoint there"}),
    Feature("time_limit", requires={"checkpoint_dir": "the run ends with a checkpoint there"}),
)

ADDED = AddOnOptions(Options, FEATURES, appends=("resume",))
