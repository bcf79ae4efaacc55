"""PyTorch's `backends`: settings of libraries, which change nothing here."""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.addons.torchlike.backends import cuda as cuda
from nnmpi.addons.torchlike.backends import cudnn as cudnn
from nnmpi.addons.torchlike.backends import mps as mps

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.backends", "backends")
