"""nnmpi: neural networks trained in parallel over MPI, in plain NumPy or CuPy.

>>> import nnmpi
>>> from nnmpi import nn, optim

Importing nnmpi changes nothing in the process, with one exception: under the command `nnmpi.train`
it blocks the signal SIGUSR1 until the command can handle it (`options.held_signals`). The import
loads tensors, layers and optimizers; Config, Trainer and other names are loaded when they are first
used. `nnmpi.blas.tune()`, which the command calls, makes training faster on some machines.
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
    from nnmpi.arrays.dtypes import of_pytorch as _of_pytorch
    from nnmpi.autograd import Tensor as Tensor
    from nnmpi.autograd import no_grad as no_grad
    from nnmpi.autograd.creation import *  # noqa: F403
    from nnmpi.autograd.functional import *  # noqa: F403
    from nnmpi.autograd.method_functions import *  # noqa: F403
    from nnmpi.autograd.torch_names import NAMES as _NAMES
    from nnmpi.io.files.loading import load as load
    from nnmpi.io.files.saving import save as save
    from nnmpi.nn.random_numbers import *  # noqa: F403
    from nnmpi.nn.seeding import Generator as Generator
    from nnmpi.nn.seeding import manual_seed as manual_seed
    from nnmpi.nn.seeding import seeded as seeded
    from nnmpi.version import __version__ as __version__

_ON_USE = _addons.names_of("nnmpi")
_OWN_ON_USE = "Config", "Trainer", "cli", "data"
"""Names that are loaded when they are first used: where those of add-ons are, and nnmpi's own."""

__path__ += [_finder.ENTRY]  # noqa: F405

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
    for name, value in {**globals(), **_ON_USE, **dict.fromkeys(_OWN_ON_USE)}.items()
    if not name.startswith("_")
    and (
        name in _MODULES
        or not (name in ("cli", "data", "notebook") or isinstance(value, _types.ModuleType))
    )
]
"""The public names; submodules that imports bind too, such as `config`, are not among them."""

if _TYPE_CHECKING:
    from nnmpi import data as data
    from nnmpi.addons.compile.compiled import compile as compile  # noqa: A004
    from nnmpi.addons.language.run.generation import generate as generate
    from nnmpi.addons.pages import loggers as loggers
    from nnmpi.addons.pages.notebook import notebook as notebook
    from nnmpi.addons.pages.notebook.notebook import (
        load_ipython_extension as load_ipython_extension,
    )
    from nnmpi.addons.pages.plot import plot as plot
    from nnmpi.addons.planning.described import machines as machines
    from nnmpi.addons.torchlike import accelerator as accelerator
    from nnmpi.addons.torchlike import amp as amp
    from nnmpi.addons.torchlike import backends as backends
    from nnmpi.addons.torchlike import cuda as cuda
    from nnmpi.addons.torchlike import distributed as distributed
    from nnmpi.addons.torchlike import distributions as distributions
    from nnmpi.addons.torchlike import jit as jit
    from nnmpi.addons.torchlike import utils as utils
    from nnmpi.addons.torchlike.autocasting import autocast as autocast
    from nnmpi.addons.torchlike.autocasting import get_autocast_dtype as get_autocast_dtype
    from nnmpi.addons.torchlike.autocasting import is_autocast_enabled as is_autocast_enabled
    from nnmpi.addons.torchlike.distributed.replicas import verify as verify
    from nnmpi.addons.torchlike.functions.elementwise import addcdiv as addcdiv
    from nnmpi.addons.torchlike.functions.elementwise import addcmul as addcmul
    from nnmpi.addons.torchlike.functions.elementwise import atan as atan
    from nnmpi.addons.torchlike.functions.elementwise import cumprod as cumprod
    from nnmpi.addons.torchlike.functions.elementwise import div as div
    from nnmpi.addons.torchlike.functions.elementwise import lerp as lerp
    from nnmpi.addons.torchlike.functions.elementwise import log2 as log2
    from nnmpi.addons.torchlike.functions.elementwise import nan_to_num as nan_to_num
    from nnmpi.addons.torchlike.functions.formulas import logical_and as logical_and
    from nnmpi.addons.torchlike.functions.formulas import logical_not as logical_not
    from nnmpi.addons.torchlike.functions.formulas import logical_or as logical_or
    from nnmpi.addons.torchlike.functions.formulas import logical_xor as logical_xor
    from nnmpi.addons.torchlike.functions.formulas import logsumexp as logsumexp
    from nnmpi.addons.torchlike.functions.formulas import reciprocal as reciprocal
    from nnmpi.addons.torchlike.functions.formulas import rsqrt as rsqrt
    from nnmpi.addons.torchlike.functions.formulas import square as square
    from nnmpi.addons.torchlike.functions.gathering import gather as gather
    from nnmpi.addons.torchlike.functions.gathering import index_add as index_add
    from nnmpi.addons.torchlike.functions.gathering import index_select as index_select
    from nnmpi.addons.torchlike.functions.gathering import masked_select as masked_select
    from nnmpi.addons.torchlike.functions.gathering import scatter as scatter
    from nnmpi.addons.torchlike.functions.gathering import scatter_add as scatter_add
    from nnmpi.addons.torchlike.functions.gathering import scatter_reduce as scatter_reduce
    from nnmpi.addons.torchlike.functions.gathering import take_along_dim as take_along_dim
    from nnmpi.addons.torchlike.functions.grad_modes import enable_grad as enable_grad
    from nnmpi.addons.torchlike.functions.grad_modes import inference_mode as inference_mode
    from nnmpi.addons.torchlike.functions.grad_modes import is_grad_enabled as is_grad_enabled
    from nnmpi.addons.torchlike.functions.grad_modes import set_grad_enabled as set_grad_enabled
    from nnmpi.addons.torchlike.functions.joining import hstack as hstack
    from nnmpi.addons.torchlike.functions.joining import vstack as vstack
    from nnmpi.addons.torchlike.functions.measuring import bincount as bincount
    from nnmpi.addons.torchlike.functions.measuring import cdist as cdist
    from nnmpi.addons.torchlike.functions.measuring import equal as equal
    from nnmpi.addons.torchlike.functions.measuring import histc as histc
    from nnmpi.addons.torchlike.functions.measuring import nonzero as nonzero
    from nnmpi.addons.torchlike.functions.measuring import norm as norm
    from nnmpi.addons.torchlike.functions.measuring import unique as unique
    from nnmpi.addons.torchlike.functions.ordering import argsort as argsort
    from nnmpi.addons.torchlike.functions.ordering import kthvalue as kthvalue
    from nnmpi.addons.torchlike.functions.ordering import median as median
    from nnmpi.addons.torchlike.functions.ordering import mode as mode
    from nnmpi.addons.torchlike.functions.ordering import quantile as quantile
    from nnmpi.addons.torchlike.functions.ordering import sort as sort
    from nnmpi.addons.torchlike.functions.ordering import topk as topk
    from nnmpi.addons.torchlike.functions.products import einsum as einsum
    from nnmpi.addons.torchlike.functions.products import kron as kron
    from nnmpi.addons.torchlike.functions.products import outer as outer
    from nnmpi.addons.torchlike.functions.rearranging import diag as diag
    from nnmpi.addons.torchlike.functions.rearranging import flip as flip
    from nnmpi.addons.torchlike.functions.rearranging import meshgrid as meshgrid
    from nnmpi.addons.torchlike.functions.rearranging import moveaxis as moveaxis
    from nnmpi.addons.torchlike.functions.rearranging import movedim as movedim
    from nnmpi.addons.torchlike.functions.rearranging import narrow as narrow
    from nnmpi.addons.torchlike.functions.rearranging import repeat_interleave as repeat_interleave
    from nnmpi.addons.torchlike.functions.rearranging import roll as roll
    from nnmpi.addons.torchlike.functions.rearranging import select as select
    from nnmpi.addons.torchlike.functions.rearranging import tile as tile
    from nnmpi.addons.torchlike.functions.rearranging import unbind as unbind
    from nnmpi.addons.torchlike.functions.rounding import ceil as ceil
    from nnmpi.addons.torchlike.functions.rounding import floor as floor
    from nnmpi.addons.torchlike.functions.rounding import round as round  # noqa: A004
    from nnmpi.addons.torchlike.functions.rounding import sign as sign
    from nnmpi.addons.torchlike.functions.rounding import trunc as trunc
    from nnmpi.addons.torchlike.functions.triangles import tril as tril
    from nnmpi.addons.torchlike.functions.triangles import tril_indices as tril_indices
    from nnmpi.addons.torchlike.functions.triangles import triu as triu
    from nnmpi.addons.torchlike.functions.triangles import triu_indices as triu_indices
    from nnmpi.addons.torchlike.functions.type_limits import finfo as finfo
    from nnmpi.addons.torchlike.functions.type_limits import iinfo as iinfo
    from nnmpi.addons.torchlike.functions.type_limits import is_floating_point as is_floating_point
    from nnmpi.addons.torchlike.functions.typed import BoolTensor as BoolTensor
    from nnmpi.addons.torchlike.functions.typed import ByteTensor as ByteTensor
    from nnmpi.addons.torchlike.functions.typed import CharTensor as CharTensor
    from nnmpi.addons.torchlike.functions.typed import DoubleTensor as DoubleTensor
    from nnmpi.addons.torchlike.functions.typed import FloatTensor as FloatTensor
    from nnmpi.addons.torchlike.functions.typed import HalfTensor as HalfTensor
    from nnmpi.addons.torchlike.functions.typed import IntTensor as IntTensor
    from nnmpi.addons.torchlike.functions.typed import LongTensor as LongTensor
    from nnmpi.addons.torchlike.functions.typed import ShortTensor as ShortTensor
    from nnmpi.addons.torchlike.functions.typed import is_tensor as is_tensor
    from nnmpi.addons.torchlike.memory_formats import channels_last as channels_last
    from nnmpi.addons.torchlike.memory_formats import contiguous_format as contiguous_format
    from nnmpi.addons.torchlike.memory_formats import preserve_format as preserve_format
    from nnmpi.addons.torchlike.random_writes import bernoulli as bernoulli
    from nnmpi.addons.transformer.dot_product_attention import (
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
    from nnmpi.options import cli as cli
    from nnmpi.options.config import Config as Config
    from nnmpi.run.trainer import Trainer as Trainer
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_USE, *_OWN_ON_USE})

    def _loaded(name: str) -> _Any:
        if name == "Config":
            from nnmpi.options.config import Config

            return Config
        if name == "Trainer":
            from nnmpi.run.trainer import Trainer

            return Trainer
        if name == "cli":
            from nnmpi.options import cli

            return cli
        if name == "data":
            import nnmpi.data

            return nnmpi.data
        return _addons.loaded(_ON_USE[name])

    def __getattr__(name: str) -> _Any:
        if name in _ON_USE or name in _OWN_ON_USE:
            with _gc_paused():
                globals()[name] = _loaded(name)
            return globals()[name]
        if name in _PACKAGES:
            __getattr__("Trainer")  # which loads what is in them
            return _import_module(f"nnmpi.{name}")
        if (dtype := _of_pytorch(name)) is not None:
            return dtype
        kinds = "functions", "functions and methods"
        raise _finder.missing(_finder.no_name("nnmpi", name, *kinds))


if "IPython" in _sys.modules:  # values draw themselves as the last line of a cell
    _NAMES.row("notebook.pictures")
