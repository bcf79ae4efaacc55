"""Options to survive the loss of ranks: --elastic, --backup and --mtbf."""

from dataclasses import dataclass

from nnmpi.options import resume_rules as rules
from nnmpi.options import value_forms
from nnmpi.options.features import EXACT_SUMS, AddOnOptions, Feature
from nnmpi.options.groups import checkpoints_option
from nnmpi.options.value_forms import FROM_0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options to survive the loss of ranks: --elastic, --backup and --mtbf."""

    elastic: bool = checkpoints_option(
        False,
        "fit the layout to the number of ranks, and continue from a checkpoint if there is one",
        resume=rules.OTHER_RANKS,
    )
    backup: int | None = checkpoints_option(
        None,
        "with mpirun --with-ft ulfm: every N steps, copy what only one rank holds to the memory "
        "of another node; without N, as often as the cost and --mtbf suggest",
        FROM_0,
        bare=0,
    )
    mtbf: str = checkpoints_option(
        "24h", "mean time between failures of the job, for --backup", form=value_forms.duration
    )


FEATURES = (
    Feature(
        "elastic",
        requires={"checkpoint_dir": "it continues from a checkpoint there, if there is one"},
    ),
    Feature("backup", relies_on=(EXACT_SUMS,)),
    Feature("mtbf", requires={"backup": "it says how often backups are worth their cost"}),
)

ADDED = AddOnOptions(Options, FEATURES, appends=("elastic",))
