"""Mixtures of experts."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        *("nnmpi.nn.layers.experts", "nnmpi.autograd.ops.experts"),
        "nnmpi.parallel.tensor.experts",
    ),
    rows={
        "names": {"nn.MixtureOfExperts": "nnmpi.nn.layers.experts:MixtureOfExperts"},
        "layer_rules": {
            "nnmpi.nn.layers.experts:Experts": "nnmpi.parallel.tensor.experts:EXPERTS_RULE",
            "nnmpi.nn.layers.experts:Router": "nnmpi.parallel.tensor.experts:ROUTER_RULE",
        },
    },
)
