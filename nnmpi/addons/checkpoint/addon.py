"""Lists, verifies and exports checkpoints."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.checkpoint", "nnmpi.io.checkpoints.export"),
    uses=("checkpoints",),
    commands={"checkpoint": ("nnmpi.checkpoint", "list, verify and export checkpoints")},
)
