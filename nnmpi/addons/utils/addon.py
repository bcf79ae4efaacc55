"""Loaders of data, schedulers and averages of weights under PyTorch's names."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.utils",
        *("nnmpi.optim.lr_scheduler", "nnmpi.optim.scheduler", "nnmpi.optim.cycles"),
        "nnmpi.optim.swa_utils",
    ),
    rows={
        "names": {
            "utils": "nnmpi.utils",
            "optim.lr_scheduler": "nnmpi.optim.lr_scheduler",
            "optim.swa_utils": "nnmpi.optim.swa_utils",
        },
        "of_step": {"utils.checkpoint": "nnmpi.utils.checkpoint"},
    },
)
