"""Convolutions on the host by the algorithm of Winograd."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.winograd",),
    rows={
        "convolutions": dict.fromkeys(
            ("auto", "winograd2", "winograd4"), "nnmpi.addons.winograd.winograd:method_of"
        )
    },
)
