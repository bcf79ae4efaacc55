"""Layers with branches, which ranks compute alone."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        *("nnmpi.nn.layers.branches", "nnmpi.autograd.ops.branches"),
        "nnmpi.parallel.tensor.branches",
    ),
    rows={
        "names": {"nn.Branches": "nnmpi.nn.layers.branches:Branches"},
        "module_rules": {
            "nnmpi.nn.layers.branches:Branches": ("nnmpi.parallel.tensor.branches:divide_branches")
        },
    },
)
