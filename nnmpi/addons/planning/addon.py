"""Predicts how long a training step of an arrangement takes on a machine, and finds the fastest
arrangement.

    lists of a rank, walked (paper/) ─► exchanges ──┐
                            machine.json ─► Machine ├─► step_time ─► StepTime    terms that add up
                                       Arrangement ─┘

`run/` has what a run and its commands do with them, and measures machines."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.planning", "nnmpi.plan", "nnmpi.measure"),
    uses=("simulator", "transformer", "proof"),
    rows={
        "options": {"planning": "nnmpi.addons.planning.options:ADDED"},
        "texts": {
            "plan": "nnmpi.addons.planning.run.text:PLAN",
            "dry-run": "nnmpi.addons.planning.run.layout_text:ARRANGED",
            "layout": "nnmpi.addons.planning.run.layout_text:ARRANGED",
        },
        "names": {"machines": "nnmpi.addons.planning.described:machines"},
        "modules": {"planning": "nnmpi.addons.planning"},
        "run_parts": {
            "dry_run": "nnmpi.addons.planning.run.dry_run:PARTS",
            "plan": "nnmpi.addons.planning.run.run_plan:PARTS",
        },
        "simulations": {"planning": "nnmpi.addons.planning.run.simulations:ADDED"},
        "event_fields": {"pp": "nnmpi.addons.planning.stage_costs:FIELDS"},
        "rank_fields": {"kinds": "nnmpi.addons.planning.run.layout_events:rank_fields"},
    },
    commands={
        "plan": (
            "nnmpi.addons.planning.plan_command",
            "find the layout that trains a model fastest, without MPI",
        ),
        "measure": (
            "nnmpi.addons.planning.measure_command",
            "measure the times of a model on this machine, for plan",
        ),
    },
)
