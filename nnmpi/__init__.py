"""nnmpi: neural networks trained in parallel over MPI, in plain NumPy or CuPy.

>>> import nnmpi
>>> from nnmpi import nn, optim

The import changes nothing in the process. `nnmpi.blas.tune()` makes training faster on some
machines; the command `nnmpi.train` calls it at its start.
"""

import types as _types
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import NoReturn as _NoReturn

from nnmpi import blas as blas
from nnmpi import collectives as collectives
from nnmpi import nn as nn
from nnmpi import optim as optim
from nnmpi.autograd import Tensor as Tensor
from nnmpi.autograd import no_grad as no_grad
from nnmpi.autograd import replacements as _replacements
from nnmpi.autograd.attention import scaled_dot_product_attention as scaled_dot_product_attention
from nnmpi.autograd.functional import absolute as absolute
from nnmpi.autograd.functional import argmax as argmax
from nnmpi.autograd.functional import broadcast_to as broadcast_to
from nnmpi.autograd.functional import cat as cat
from nnmpi.autograd.functional import clip as clip
from nnmpi.autograd.functional import concatenate as concatenate
from nnmpi.autograd.functional import cos as cos
from nnmpi.autograd.functional import cumsum as cumsum
from nnmpi.autograd.functional import einsum as einsum
from nnmpi.autograd.functional import exp as exp
from nnmpi.autograd.functional import expand_dims as expand_dims
from nnmpi.autograd.functional import flatten as flatten
from nnmpi.autograd.functional import from_numpy as from_numpy
from nnmpi.autograd.functional import full as full
from nnmpi.autograd.functional import gelu as gelu
from nnmpi.autograd.functional import leaky_relu as leaky_relu
from nnmpi.autograd.functional import log as log
from nnmpi.autograd.functional import log_softmax as log_softmax
from nnmpi.autograd.functional import maximum as maximum
from nnmpi.autograd.functional import minimum as minimum
from nnmpi.autograd.functional import ones as ones
from nnmpi.autograd.functional import pad as pad
from nnmpi.autograd.functional import relu as relu
from nnmpi.autograd.functional import sigmoid as sigmoid
from nnmpi.autograd.functional import silu as silu
from nnmpi.autograd.functional import sin as sin
from nnmpi.autograd.functional import softmax as softmax
from nnmpi.autograd.functional import sort as sort
from nnmpi.autograd.functional import split as split
from nnmpi.autograd.functional import sqrt as sqrt
from nnmpi.autograd.functional import squeeze as squeeze
from nnmpi.autograd.functional import stack as stack
from nnmpi.autograd.functional import swapaxes as swapaxes
from nnmpi.autograd.functional import tanh as tanh
from nnmpi.autograd.functional import tensor as tensor
from nnmpi.autograd.functional import topk as topk
from nnmpi.autograd.functional import unsqueeze as unsqueeze
from nnmpi.autograd.functional import where as where
from nnmpi.autograd.functional import zeros as zeros
from nnmpi.config import Config as Config
from nnmpi.nn.random_numbers import random as random
from nnmpi.nn.seeding import manual_seed as manual_seed
from nnmpi.nn.seeding import seeded as seeded
from nnmpi.notebook import load_ipython_extension as load_ipython_extension
from nnmpi.run import loggers as loggers
from nnmpi.run.files.loading import load as load
from nnmpi.run.files.saving import save as save
from nnmpi.run.report.plot import plot as plot
from nnmpi.run.text.generation import generate as generate
from nnmpi.run.trainer import Trainer as Trainer
from nnmpi.version import __version__ as __version__

__path__.append(f"{__path__[0]}/commands")  # see there
_MODULES = ("blas", "collectives", "loggers", "nn", "optim")
__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and (not isinstance(value, _types.ModuleType) or name in _MODULES)
]
"""The names above: an import binds submodules too, as `config`, which are not of the library."""

if not _TYPE_CHECKING:  # so that type checkers still know which names there are

    def __getattr__(name: str) -> _NoReturn:
        raise AttributeError(_replacements.no_function(name))
