"""Sends the events of a run to loggers such as TensorBoard."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.options.parts.loggers", "nnmpi.io.loggers"),
    uses=("planning", "pages"),
    rows={
        "options": {"loggers": "nnmpi.options.parts.loggers:PART"},
        "names": {"loggers": "nnmpi.io.loggers"},
        "callbacks": {"logger": "nnmpi.io.loggers:loggers_of"},
    },
)
