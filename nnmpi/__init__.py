"""nnmpi: neural networks trained in parallel over MPI, in plain NumPy or CuPy.

>>> import nnmpi
>>> from nnmpi import nn, optim
"""

from nnmpi import blas

blas.tune()

from nnmpi import collectives, nn, optim  # noqa: E402
from nnmpi.autograd import Tensor, no_grad  # noqa: E402
from nnmpi.autograd.functional import (  # noqa: E402
    absolute,
    broadcast_to,
    clip,
    concatenate,
    cos,
    exp,
    expand_dims,
    gelu,
    log,
    log_softmax,
    maximum,
    minimum,
    relu,
    sigmoid,
    sin,
    softmax,
    sqrt,
    stack,
    swapaxes,
    tanh,
    tensor,
    where,
)
from nnmpi.config import Config  # noqa: E402
from nnmpi.run.saving import load, save  # noqa: E402
from nnmpi.run.trainer import Trainer  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Tensor",
    "Trainer",
    "absolute",
    "broadcast_to",
    "clip",
    "collectives",
    "concatenate",
    "cos",
    "exp",
    "expand_dims",
    "gelu",
    "load",
    "log",
    "log_softmax",
    "maximum",
    "minimum",
    "nn",
    "no_grad",
    "optim",
    "relu",
    "save",
    "sigmoid",
    "sin",
    "softmax",
    "sqrt",
    "stack",
    "swapaxes",
    "tanh",
    "tensor",
    "where",
]
