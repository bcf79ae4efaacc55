from nnmpi.addons.torchlike.distributed.data_parallel import (
    DistributedDataParallel as DistributedDataParallel,
)
