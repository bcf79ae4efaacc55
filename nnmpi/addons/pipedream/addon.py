"""Pipelines without a flush, whose stages use older weights."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.pipedream",),
    rows={
        "options": {"pipedream": "nnmpi.addons.pipedream.options:ADDED"},
        "checks": {"pipedream": "nnmpi.addons.pipedream.pipedream:CHECKS"},
        "strategy_kinds": {"pipedream": "nnmpi.addons.pipedream.pipedream:KIND"},
    },
)
