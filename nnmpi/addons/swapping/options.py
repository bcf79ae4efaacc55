"""The option --memory: activations and state are swapped to disk."""

from dataclasses import dataclass

from nnmpi.options import value_forms
from nnmpi.options.features import (
    EXACT_SUMS,
    HOST_MEMORY,
    PLAIN_PASSES,
    WHOLE_MATRICES,
    WHOLE_MODEL,
    AddOnOptions,
    Feature,
)
from nnmpi.options.groups import other_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --memory: activations and state are swapped to disk."""

    memory: str | None = other_option(
        None,
        "memory limit of a rank, such as 2GB: what exceeds it is swapped to TMPDIR, or recomputed",
        form=value_forms.size,
    )


FEATURES = (
    Feature(
        "memory",
        relies_on=(EXACT_SUMS, WHOLE_MODEL, PLAIN_PASSES, HOST_MEMORY),
        breaks={WHOLE_MATRICES: "pieces are updated"},
        conflicts={
            "zero 2 or 3": "its slots of gradients and parameters cannot be swapped",
            "recompute": "--memory chooses by cost which units are recomputed",
        },
    ),
)


ADDED = AddOnOptions(Options, FEATURES)
