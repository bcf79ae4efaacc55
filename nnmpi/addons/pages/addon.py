"""Draws runs, and writes pages of them."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.pages",
        *("nnmpi.io.page", "nnmpi.io.output.plot", "nnmpi.io.output.curves"),
        *("nnmpi.plot", "nnmpi.report", "nnmpi.watch"),
    ),
    uses=("simulator", "planning"),
    rows={
        "options": {"pages": "nnmpi.addons.pages.options:PART"},
        "names": {"plot": "nnmpi.io.output.plot:plot"},
        "outputs": {"report": "nnmpi.io.page.page:OUTPUT"},
        "reports": {"report": "nnmpi.io.page.page:write_at_end"},
    },
    commands={
        "plot": ("nnmpi.io.output.plot", "draw loss and accuracy, from logs of runs"),
        "report": ("nnmpi.report", "write a page of runs, from their logs and traces"),
        "watch": ("nnmpi.watch", "serve that page, and update it while a run continues"),
    },
)
