"""Loops of one's own on several ranks, as with torch.distributed."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        *("nnmpi.distributed", "nnmpi.nn.parallel", "nnmpi.utils.data.distributed"),
        "nnmpi.run.__main__",
    ),
    uses=("utils",),
    rows={
        "names": {
            "distributed": "nnmpi.distributed",
            "verify": "nnmpi.distributed.replicas:verify",
            "nn.parallel": "nnmpi.nn.parallel",
            "nn.parallel.DistributedDataParallel": (
                "nnmpi.distributed.data_parallel:DistributedDataParallel"
            ),
            "utils.data.distributed": "nnmpi.utils.data.distributed",
            **{
                f"utils.data.{name}": "nnmpi.distributed.sampler:DistributedSampler"
                for name in ("DistributedSampler", "distributed.DistributedSampler")
            },
        }
    },
)
