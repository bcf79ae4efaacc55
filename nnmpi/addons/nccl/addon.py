"""Sums between GPUs by NCCL."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.nccl",),
    rows={
        "options": {"nccl": "nnmpi.addons.nccl.options:ADDED"},
        "library_sums": {"nccl": "nnmpi.addons.nccl.nccl:SUMS"},
    },
)
