"""Ranks in the cells of notebooks, and pictures of results."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.notebook",),
    uses=("simulator", "planning", "pages"),
    rows={
        "names": {
            "notebook": "nnmpi.addons.notebook.notebook",
            "load_ipython_extension": "nnmpi.addons.notebook.notebook:load_ipython_extension",
        },
        "in_ipython": {"pictures": "nnmpi.addons.notebook.pictures"},
    },
)
