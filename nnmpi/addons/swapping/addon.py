"""Keeps values and states of units out of memory until they are used."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.options.parts.swapping",
        *("nnmpi.parallel.swapping", "nnmpi.io.output.residences", "nnmpi.run.within_memory"),
    ),
    uses=("planning",),
    rows={
        "options": {"swapping": "nnmpi.options.parts.swapping:PART"},
        "start_fields": {"memory": "nnmpi.parallel.swapping.placement:residence_fields"},
        "start_lines": {"residences": "nnmpi.io.output.residences:beyond_memory"},
        "layout_fields": {"memory": "nnmpi.parallel.swapping.placement:residence_fields"},
        "layout_texts": {"residences": "nnmpi.io.output.residences:units"},
        "arrangements": {"memory": "nnmpi.run.within_memory:within_memory"},
        "memory_limits": {"memory": "nnmpi.options.parts.swapping:limit"},
    },
)
