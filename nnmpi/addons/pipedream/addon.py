"""Pipelines without a flush, whose stages use older weights."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.options.parts.pipedream", "nnmpi.parallel.pipedream"),
    rows={
        "options": {"pipedream": "nnmpi.options.parts.pipedream:PART"},
        "checks": {"pipedream": "nnmpi.parallel.pipedream:check"},
        "strategy_kinds": {"pipedream": "nnmpi.parallel.pipedream:KIND"},
    },
)
