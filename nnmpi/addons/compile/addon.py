"""Steps of loops of one's own that are recorded once and replayed."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.compile",),
    rows={
        "names": {"compile": "nnmpi.addons.compile.compiled:compile"},
        "modules": {"optim.compiled": "nnmpi.addons.compile.compiled"},
    },
)
