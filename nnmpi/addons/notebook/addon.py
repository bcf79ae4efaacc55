"""Ranks in the cells of notebooks, and pictures of results."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.run.notebook",),
    uses=("simulator", "planning", "pages"),
    rows={
        "names": {
            "notebook": "nnmpi.run.notebook",
            "load_ipython_extension": "nnmpi.run.notebook:load_ipython_extension",
        },
        "in_ipython": {"pictures": "nnmpi.run.notebook.pictures"},
    },
    files=("tests/examples/test_notebooks.py",),
)
