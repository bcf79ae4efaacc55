"""Convolutions on the host by the algorithm of Winograd."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.arrays.winograd", "nnmpi.arrays.kernels.winograd_matrices"),
    rows={
        "convolutions": dict.fromkeys(
            ("auto", "winograd2", "winograd4"), "nnmpi.arrays.winograd:method_of"
        )
    },
)
