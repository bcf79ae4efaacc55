"""Divides sequences among ranks (the axis cp)."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.options.parts.context",
        *("nnmpi.parallel.context", "nnmpi.run.setup.sequences"),
    ),
    uses=("transformer",),
    rows={
        "options": {"context": "nnmpi.options.parts.context:PART"},
        "axis_set_ups": {"cp": "nnmpi.run.setup.sequences:SET_UP"},
    },
)
