"""Optimizers for large batches and for matrices: LAMB, LARS and Muon."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=("nnmpi.addons.optimizers",),
    rows={
        "options": {"optimizers": "nnmpi.addons.optimizers.options:ADDED"},
        "names": places(
            {"addons.optimizers.layerwise": "LAMB LARS", "addons.optimizers.muon": "Muon"},
            "optim.",
        ),
        "modules": {
            "optim.layerwise": "nnmpi.addons.optimizers.layerwise",
            "optim.muon": "nnmpi.addons.optimizers.muon",
        },
        "optimizers": {
            "lamb": "nnmpi.addons.optimizers.layerwise:LAMB",
            "lars": "nnmpi.addons.optimizers.layerwise:LARS",
            "muon": "nnmpi.addons.optimizers.muon:Muon.with_adamw",
        },
    },
)
