"""Writes when each rank did what."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.options.parts.trace", "nnmpi.io.trace"),
    uses=("simulator",),
    rows={
        "options": {"trace": "nnmpi.options.parts.trace:PART"},
        "outputs": {"trace": "nnmpi.io.trace.tracing:OUTPUT"},
        "tracers": {"trace": "nnmpi.io.trace:Tracer"},
        "result_lines": {"trace": "nnmpi.io.trace.text:times"},
    },
)
