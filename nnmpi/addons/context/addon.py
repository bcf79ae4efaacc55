"""Context parallelism: sequences whose positions are divided among the ranks along cp."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.context",),
    uses=("transformer",),
    rows={
        "options": {"context": "nnmpi.addons.context.options:ADDED"},
        "axis_set_ups": {"cp": "nnmpi.addons.context.set_up:SET_UP"},
    },
)
