"""Divides images by rows among the ranks along tp."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.parallel.tensor.image_rows",),
    rows={
        "layout_axes": {"rows": "nnmpi.parallel.tensor.image_rows.cut:IMAGE_ROWS"},
        "layout_ways": {"spatial": "nnmpi.parallel.tensor.image_rows.cut:IMAGE_ROWS"},
    },
)
