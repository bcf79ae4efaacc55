"""Replicas that train by themselves and are averaged now and then."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.averaging", "nnmpi.parallel.averaging"),
    uses=("compression",),
    rows={
        "options": {"averaging": "nnmpi.addons.averaging.options:PART"},
        "graph_checks": dict.fromkeys(
            ("every", "fragments", "apply_after"),
            "nnmpi.parallel.averaging.fragments:check_fragments",
        ),
        "strategy_kinds": {"averaging": "nnmpi.parallel.averaging:KIND"},
        "sync_phrases": {"every": "nnmpi.parallel.averaging.rounds:phrases"},
    },
)
