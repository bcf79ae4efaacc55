"""Options that matter only on GPUs: --tf32, which rounds the factors of float32 products."""

from dataclasses import dataclass

from nnmpi.options.features import AddOnOptions, Feature
from nnmpi.options.groups import training_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that matter only on GPUs: --tf32, which rounds the factors of float32 products."""

    tf32: bool = training_option(
        False, "on a GPU: round the factors of float32 products to 11 bits (TF32), which is faster"
    )


FEATURES = (
    Feature(
        "tf32", requires={"device cuda": "a CPU does not round the factors of float32 products"}
    ),
)

ADDED = AddOnOptions(Options, FEATURES, costs=("tf32",))
