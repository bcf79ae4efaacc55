"""The option --cp of context parallelism, its axis of the mesh, and the value "selective" of
--recompute: only attention layers run again in the backward pass."""

from dataclasses import dataclass

from nnmpi.options.features import (
    STEPS_TOGETHER,
    WHOLE_MODEL,
    AddOnOptions,
    Feature,
    MeshAxis,
)
from nnmpi.options.groups import layout_option
from nnmpi.options.value_forms import FROM_1, layout_along


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --cp: ranks that divide the positions of sequences."""

    cp: int = layout_option(
        1, "context-parallel ranks: each holds some positions of every sequence", FROM_1
    )


AXIS = MeshAxis("cp", replicas=True, before="dp", cuts="sequences", activations=("length",))

FEATURES = (
    Feature(
        "cp",
        relies_on=(STEPS_TOGETHER,),
        breaks={WHOLE_MODEL: "each rank has some positions of the sequences"},
        conflicts={"positions along tp": "both cut the positions of sequences"},
    ),
    Feature(
        "layout length:cp",
        layout_along("cp"),
        requires={"cp": "it says that sequences are cut along cp"},
    ),
)

ADDED = AddOnOptions(
    Options, FEATURES, choices={"recompute": ("selective",)}, costs=("cp",), axes=(AXIS,)
)
