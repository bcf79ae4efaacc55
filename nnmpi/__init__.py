"""nnmpi: neural networks trained in parallel over MPI, in plain NumPy or CuPy.

>>> import nnmpi
>>> from nnmpi import nn, optim

Importing nnmpi changes nothing in the process, with one exception: under the command `nnmpi.train`
it blocks the signal SIGUSR1 until the command can handle it (`options.held_signals`). The import
loads tensors, layers and optimizers; the Trainer and other names are loaded when they are first
used. On some machines `nnmpi.blas.tune()` makes training faster; the command calls it when it
starts.
"""

from nnmpi.options import held_signals as _held_signals  # noqa: F401 - the first import

# isort: split
import sys as _sys
import types as _types
from importlib import import_module as _import_module
from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from nnmpi import addons as _addons
from nnmpi.addons import finder as _finder
from nnmpi.options.collector import gc_paused as _gc_paused

with _gc_paused():
    from nnmpi import collectives as collectives
    from nnmpi import comm as _comm  # noqa: F401 - programs use nnmpi.comm without importing it
    from nnmpi import nn as nn
    from nnmpi import optim as optim
    from nnmpi.arrays import blas as blas
    from nnmpi.arrays.backend import device as device
    from nnmpi.autograd import Tensor as Tensor
    from nnmpi.autograd import no_grad as no_grad
    from nnmpi.autograd import replacements as _replacements
    from nnmpi.autograd.creation import *  # noqa: F403
    from nnmpi.autograd.functional import *  # noqa: F403
    from nnmpi.autograd.method_functions import *  # noqa: F403
    from nnmpi.io.files.loading import load as load
    from nnmpi.io.files.saving import save as save
    from nnmpi.nn.random_numbers import *  # noqa: F403
    from nnmpi.nn.seeding import Generator as Generator
    from nnmpi.nn.seeding import manual_seed as manual_seed
    from nnmpi.nn.seeding import seeded as seeded
    from nnmpi.options.config import Config as Config
    from nnmpi.version import __version__ as __version__

_ON_USE = {
    "Trainer": "nnmpi.run.trainer:Trainer",
    "cli": "nnmpi.options.cli",
    "data": "nnmpi.data",
    **_addons.names_of("nnmpi"),
}
"""The modules of names that are loaded when they are first used: "module" or "module:name"."""

__path__ += [_finder.ENTRY, _replacements.ABSENT]  # noqa: F405

_PACKAGES = ("metrics", "parallel", "planning", "run", "schedules", "sim")
"""Packages that programs use without importing them, as in `nnmpi.metrics.accuracy`."""

_MODULES = (
    "accelerator",
    "amp",
    "backends",
    "blas",
    "collectives",
    "cuda",
    "distributed",
    "distributions",
    "jit",
    "loggers",
    "nn",
    "optim",
    "utils",
)
__all__ = [
    name
    for name, value in {**globals(), **_ON_USE}.items()
    if not name.startswith("_")
    and (
        name in _MODULES
        or not (name in ("cli", "data", "notebook") or isinstance(value, _types.ModuleType))
    )
]
"""The public names: imports also bind submodules, such as `config`, which do not belong to the
library."""

if _TYPE_CHECKING:
    from nnmpi import accelerator as accelerator
    from nnmpi import amp as amp
    from nnmpi import backends as backends
    from nnmpi import cuda as cuda
    from nnmpi import data as data
    from nnmpi import distributed as distributed
    from nnmpi import distributions as distributions
    from nnmpi import jit as jit
    from nnmpi import utils as utils
    from nnmpi.addons.compile.compiled import compile as compile  # noqa: A004
    from nnmpi.addons.language.run.generation import generate as generate
    from nnmpi.addons.pages import loggers as loggers
    from nnmpi.addons.pages.notebook import notebook as notebook
    from nnmpi.addons.pages.notebook.notebook import (
        load_ipython_extension as load_ipython_extension,
    )
    from nnmpi.addons.pages.plot import plot as plot
    from nnmpi.addons.planning.described import machines as machines
    from nnmpi.addons.transformer.dot_product_attention import (
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
    from nnmpi.autograd.autocasting import autocast as autocast
    from nnmpi.autograd.autocasting import get_autocast_dtype as get_autocast_dtype
    from nnmpi.autograd.autocasting import is_autocast_enabled as is_autocast_enabled
    from nnmpi.autograd.functions.elementwise import addcdiv as addcdiv
    from nnmpi.autograd.functions.elementwise import addcmul as addcmul
    from nnmpi.autograd.functions.elementwise import atan as atan
    from nnmpi.autograd.functions.elementwise import cumprod as cumprod
    from nnmpi.autograd.functions.elementwise import div as div
    from nnmpi.autograd.functions.elementwise import lerp as lerp
    from nnmpi.autograd.functions.elementwise import log2 as log2
    from nnmpi.autograd.functions.elementwise import nan_to_num as nan_to_num
    from nnmpi.autograd.functions.formulas import logical_and as logical_and
    from nnmpi.autograd.functions.formulas import logical_not as logical_not
    from nnmpi.autograd.functions.formulas import logical_or as logical_or
    from nnmpi.autograd.functions.formulas import logical_xor as logical_xor
    from nnmpi.autograd.functions.formulas import logsumexp as logsumexp
    from nnmpi.autograd.functions.formulas import reciprocal as reciprocal
    from nnmpi.autograd.functions.formulas import rsqrt as rsqrt
    from nnmpi.autograd.functions.formulas import square as square
    from nnmpi.autograd.functions.gathering import gather as gather
    from nnmpi.autograd.functions.gathering import index_add as index_add
    from nnmpi.autograd.functions.gathering import index_select as index_select
    from nnmpi.autograd.functions.gathering import masked_select as masked_select
    from nnmpi.autograd.functions.gathering import scatter as scatter
    from nnmpi.autograd.functions.gathering import scatter_add as scatter_add
    from nnmpi.autograd.functions.gathering import scatter_reduce as scatter_reduce
    from nnmpi.autograd.functions.gathering import take_along_dim as take_along_dim
    from nnmpi.autograd.functions.grad_modes import enable_grad as enable_grad
    from nnmpi.autograd.functions.grad_modes import inference_mode as inference_mode
    from nnmpi.autograd.functions.grad_modes import is_grad_enabled as is_grad_enabled
    from nnmpi.autograd.functions.grad_modes import set_grad_enabled as set_grad_enabled
    from nnmpi.autograd.functions.joining import hstack as hstack
    from nnmpi.autograd.functions.joining import vstack as vstack
    from nnmpi.autograd.functions.measuring import bincount as bincount
    from nnmpi.autograd.functions.measuring import cdist as cdist
    from nnmpi.autograd.functions.measuring import equal as equal
    from nnmpi.autograd.functions.measuring import histc as histc
    from nnmpi.autograd.functions.measuring import nonzero as nonzero
    from nnmpi.autograd.functions.measuring import norm as norm
    from nnmpi.autograd.functions.measuring import unique as unique
    from nnmpi.autograd.functions.ordering import argsort as argsort
    from nnmpi.autograd.functions.ordering import kthvalue as kthvalue
    from nnmpi.autograd.functions.ordering import median as median
    from nnmpi.autograd.functions.ordering import mode as mode
    from nnmpi.autograd.functions.ordering import quantile as quantile
    from nnmpi.autograd.functions.ordering import sort as sort
    from nnmpi.autograd.functions.ordering import topk as topk
    from nnmpi.autograd.functions.products import einsum as einsum
    from nnmpi.autograd.functions.products import kron as kron
    from nnmpi.autograd.functions.products import outer as outer
    from nnmpi.autograd.functions.rearranging import diag as diag
    from nnmpi.autograd.functions.rearranging import flip as flip
    from nnmpi.autograd.functions.rearranging import meshgrid as meshgrid
    from nnmpi.autograd.functions.rearranging import moveaxis as moveaxis
    from nnmpi.autograd.functions.rearranging import movedim as movedim
    from nnmpi.autograd.functions.rearranging import narrow as narrow
    from nnmpi.autograd.functions.rearranging import repeat_interleave as repeat_interleave
    from nnmpi.autograd.functions.rearranging import roll as roll
    from nnmpi.autograd.functions.rearranging import select as select
    from nnmpi.autograd.functions.rearranging import tile as tile
    from nnmpi.autograd.functions.rearranging import unbind as unbind
    from nnmpi.autograd.functions.rounding import ceil as ceil
    from nnmpi.autograd.functions.rounding import floor as floor
    from nnmpi.autograd.functions.rounding import round as round  # noqa: A004
    from nnmpi.autograd.functions.rounding import sign as sign
    from nnmpi.autograd.functions.rounding import trunc as trunc
    from nnmpi.autograd.functions.triangles import tril as tril
    from nnmpi.autograd.functions.triangles import tril_indices as tril_indices
    from nnmpi.autograd.functions.triangles import triu as triu
    from nnmpi.autograd.functions.triangles import triu_indices as triu_indices
    from nnmpi.autograd.functions.type_limits import finfo as finfo
    from nnmpi.autograd.functions.type_limits import iinfo as iinfo
    from nnmpi.autograd.functions.type_limits import is_floating_point as is_floating_point
    from nnmpi.autograd.functions.typed import BoolTensor as BoolTensor
    from nnmpi.autograd.functions.typed import ByteTensor as ByteTensor
    from nnmpi.autograd.functions.typed import CharTensor as CharTensor
    from nnmpi.autograd.functions.typed import DoubleTensor as DoubleTensor
    from nnmpi.autograd.functions.typed import FloatTensor as FloatTensor
    from nnmpi.autograd.functions.typed import HalfTensor as HalfTensor
    from nnmpi.autograd.functions.typed import IntTensor as IntTensor
    from nnmpi.autograd.functions.typed import LongTensor as LongTensor
    from nnmpi.autograd.functions.typed import ShortTensor as ShortTensor
    from nnmpi.autograd.functions.typed import is_tensor as is_tensor
    from nnmpi.distributed.replicas import verify as verify
    from nnmpi.memory_formats import channels_last as channels_last
    from nnmpi.memory_formats import contiguous_format as contiguous_format
    from nnmpi.memory_formats import preserve_format as preserve_format
    from nnmpi.nn.random_writes import bernoulli as bernoulli
    from nnmpi.options import cli as cli
    from nnmpi.run.trainer import Trainer as Trainer
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_USE})

    def __getattr__(name: str) -> _Any:
        if name in _ON_USE:
            with _gc_paused():
                globals()[name] = _addons.loaded(_ON_USE[name])
            return globals()[name]
        if name in _PACKAGES:
            __getattr__("Trainer")  # which loads what is in them
            return _import_module(f"nnmpi.{name}")
        if (dtype := _replacements.dtype_named(name)) is not None:
            return dtype
        kinds = "functions", "functions and methods"
        raise _replacements.missing(_replacements.no_name("nnmpi", name, *kinds))


if "IPython" in _sys.modules:  # values draw themselves as the last line of a cell
    [*_addons.rows("in_ipython")]
