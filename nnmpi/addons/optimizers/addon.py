"""More optimizers than SGD, Adam and RMSprop."""

from nnmpi.addons import AddOn, places

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.optimizers",
        *("nnmpi.optim.adaptive", "nnmpi.optim.layerwise", "nnmpi.optim.muon"),
        *("nnmpi.optim.lbfgs", "nnmpi.optim.line_search"),
    ),
    rows={
        "options": {"optimizers": "nnmpi.addons.optimizers.options:ADDED"},
        "names": places(
            {
                "optim.adaptive": "ASGD Adadelta Adagrad Adamax NAdam RAdam Rprop",
                "optim.layerwise": "LAMB LARS",
                "optim.lbfgs": "LBFGS",
                "optim.muon": "Muon",
            },
            "optim.",
        ),
        "optimizers": {
            **{
                name.lower(): f"nnmpi.optim.adaptive:{name}"
                for name in ("ASGD", "Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam")
            },
            "lamb": "nnmpi.optim.layerwise:LAMB",
            "lars": "nnmpi.optim.layerwise:LARS",
            "muon": "nnmpi.optim.muon:Muon.with_adamw",
        },
    },
)
