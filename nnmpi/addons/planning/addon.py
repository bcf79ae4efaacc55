"""Predicts time and memory of layouts, and searches for the fastest."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.planning",
        *("nnmpi.planning", "nnmpi.run.planning"),
        *("nnmpi.plan", "nnmpi.measure"),
    ),
    uses=("simulator", "context"),
    rows={
        "options": {"planning": "nnmpi.addons.planning.options:PART"},
        "names": {"machines": "nnmpi.planning.described:machines"},
        "instead": {"dry_run": "nnmpi.run.planning.dry_run:print_dry_run"},
        "plans": {"plan": "nnmpi.run.planning.planning:planned_run"},
        "simulations": {"layout": "nnmpi.run.planning.dry_run"},
        "sim_options": {"machine": "nnmpi.planning.described.simulated:add_machine"},
        "start_fields": {"pp": "nnmpi.planning.stage_costs:pipeline_fields"},
        "start_lines": {"plan": "nnmpi.run.planning.text:chosen"},
        "result_lines": {"plan": "nnmpi.run.planning.text:outcome"},
        "rank_fields": {"kinds": "nnmpi.run.planning.layout_events:rank_fields"},
        "event_texts": {
            "dry-run": "nnmpi.run.planning.layout_text:arranged",
            "layout": "nnmpi.run.planning.layout_text:arranged",
        },
    },
    commands={
        "plan": ("nnmpi.plan", "find the layout that trains a model fastest, without MPI"),
        "measure": (
            "nnmpi.measure",
            "measure the times of a model on this machine, for plan",
        ),
    },
)
