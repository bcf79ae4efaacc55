"""PyTorch's `backends`: settings of libraries, which change nothing here."""

from typing import TYPE_CHECKING

from nnmpi.autograd import replacements
from nnmpi.backends import cuda as cuda
from nnmpi.backends import cudnn as cudnn
from nnmpi.backends import mps as mps

__path__.append(replacements.ABSENT)

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.backends", "backends")
