"""nnmpi: neural networks trained in parallel over MPI, in plain NumPy or CuPy.

>>> import nnmpi
>>> from nnmpi import nn, optim

The import changes nothing in the process. `nnmpi.blas.tune()` makes training faster on some
machines; the command `nnmpi.train` calls it at its start.
"""

from nnmpi import blas, collectives, nn, optim
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import (
    absolute,
    broadcast_to,
    clip,
    concatenate,
    cos,
    exp,
    expand_dims,
    flatten,
    gelu,
    leaky_relu,
    log,
    log_softmax,
    maximum,
    minimum,
    relu,
    sigmoid,
    silu,
    sin,
    softmax,
    split,
    sqrt,
    squeeze,
    stack,
    swapaxes,
    tanh,
    tensor,
    unsqueeze,
    where,
)
from nnmpi.config import Config
from nnmpi.nn.seeding import seeded
from nnmpi.run.files.loading import load
from nnmpi.run.files.saving import save
from nnmpi.run.report.plot import plot
from nnmpi.run.trainer import Trainer

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Tensor",
    "Trainer",
    "absolute",
    "blas",
    "broadcast_to",
    "clip",
    "collectives",
    "concatenate",
    "cos",
    "exp",
    "expand_dims",
    "flatten",
    "gelu",
    "leaky_relu",
    "load",
    "log",
    "log_softmax",
    "maximum",
    "minimum",
    "nn",
    "no_grad",
    "optim",
    "plot",
    "relu",
    "save",
    "seeded",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "swapaxes",
    "tanh",
    "tensor",
    "unsqueeze",
    "where",
]
