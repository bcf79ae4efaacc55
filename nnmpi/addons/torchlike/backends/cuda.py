"""PyTorch's settings of CUDA, which change nothing."""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.addons.torchlike.backends.settings import Settings

matmul = Settings("nnmpi.backends.cuda.matmul")
vars(matmul).update(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.backends.cuda", "backends")
