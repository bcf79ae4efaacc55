"""PyTorch's `backends`: settings of libraries, which change nothing here."""

from typing import TYPE_CHECKING

from nnmpi.addons.torchlike.backends import cuda as cuda
from nnmpi.addons.torchlike.backends import cudnn as cudnn
from nnmpi.addons.torchlike.backends import mps as mps
from nnmpi.autograd import replacements

__path__.append(replacements.ABSENT)

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.backends", "backends")
