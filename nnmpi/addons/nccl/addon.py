"""Sums between GPUs by NCCL."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.options.parts.nccl", "nnmpi.parallel.nccl"),
    rows={
        "options": {"nccl": "nnmpi.options.parts.nccl:PART"},
        "library_sums": {"nccl": "nnmpi.parallel.nccl:SUMS"},
    },
)
