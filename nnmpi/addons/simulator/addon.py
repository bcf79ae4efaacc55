"""The simulator: predicts what collectives, pipelines and other plans cost, and draws them, without
executing them. The cost of a layout of a model is in `planning`."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.simulator", "nnmpi.simulate"),
    rows={"modules": {"sim": "nnmpi.addons.simulator"}},
    commands={
        "simulate": (
            "nnmpi.addons.simulator.command",
            "predict and draw what layouts cost, without MPI",
        )
    },
)
