"""Draws runs: on pages, in plots, in the cells of notebooks, and by loggers such as TensorBoard."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.pages", "nnmpi.plot", "nnmpi.report", "nnmpi.watch"),
    uses=("simulator", "planning"),
    rows={
        "options": {
            "pages": "nnmpi.addons.pages.options:ADDED",
        },
        "names": {
            "load_ipython_extension": "nnmpi.addons.pages.notebook.notebook:load_ipython_extension",
            "loggers": "nnmpi.addons.pages.loggers",
            "notebook": "nnmpi.addons.pages.notebook.notebook",
            "notebook.pictures": "nnmpi.addons.pages.notebook.pictures",
            "plot": "nnmpi.addons.pages.plot:plot",
        },
        "run_parts": {
            "logger": "nnmpi.addons.pages.loggers:PARTS",
            "report": "nnmpi.addons.pages.at_end:PARTS",
        },
    },
    commands={
        "plot": ("nnmpi.addons.pages.plot", "draw loss and accuracy, from logs of runs"),
        "report": (
            "nnmpi.addons.pages.report_command",
            "write a page of runs, from their logs and traces",
        ),
        "watch": (
            "nnmpi.addons.pages.watch_command",
            "serve that page, and update it while a run continues",
        ),
    },
)
