"""Parameter servers, to which workers push gradients."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.options.parts.servers", "nnmpi.parallel.server"),
    uses=("averaging",),
    rows={
        "options": {"servers": "nnmpi.options.parts.servers:PART"},
        "checks": {"servers": "nnmpi.parallel.server:check"},
        "serving_ranks": {"servers": "nnmpi.options.parts.servers:server_count"},
        "fewer_ranks": {"servers": "nnmpi.options.parts.servers:with_fewer"},
        "strategy_kinds": {"servers": "nnmpi.parallel.server:KIND"},
        "layout_fields": {"servers": "nnmpi.parallel.server.strategy:layout_fields"},
        "sync_phrases": {"servers": "nnmpi.parallel.server.text:phrases"},
        "result_lines": {"staleness": "nnmpi.parallel.server.text:staleness"},
        "fitted_notes": {"servers": "nnmpi.options.parts.servers:note_of_fitted"},
    },
)
