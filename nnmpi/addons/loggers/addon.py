"""Sends the events of a run to loggers such as TensorBoard."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.loggers",),
    uses=("planning", "pages"),
    rows={
        "options": {"loggers": "nnmpi.addons.loggers.options:PART"},
        "names": {"loggers": "nnmpi.addons.loggers.loggers"},
        "callbacks": {"logger": "nnmpi.addons.loggers.loggers:loggers_of"},
    },
)
