"""PyTorch's `backends`: settings of libraries, which change nothing here."""

from nnmpi.backends import cuda as cuda
from nnmpi.backends import cudnn as cudnn
from nnmpi.backends import mps as mps
