"""The simulator: predicts what collectives, pipelines and other plans cost, and draws them, without
executing them.

Here: collectives, pipelines and sharded matrix products on a described network, local steps and
gossip, failures of jobs, the cost formulas of textbooks, the subcommands of `nnmpi.simulate`, and
in `drawing` tables and timelines of any plan. Not here: the cost of a layout of a model
(`planning`).
"""

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
