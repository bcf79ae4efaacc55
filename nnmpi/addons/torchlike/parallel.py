"""PyTorch's `nn.parallel`."""

from typing import TYPE_CHECKING

from nnmpi.addons.torchlike.distributed.data_parallel import (
    DistributedDataParallel as DistributedDataParallel,
)
from nnmpi.autograd import replacements

__path__ = [replacements.ABSENT]

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.nn.parallel", "nn.parallel")
