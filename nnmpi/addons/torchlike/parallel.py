"""PyTorch's `nn.parallel`."""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.addons.torchlike.distributed.data_parallel import (
    DistributedDataParallel as DistributedDataParallel,
)

__path__ = [finder.ENTRY]

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.nn.parallel", "nn.parallel")
