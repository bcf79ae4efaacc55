"""PyTorch's `nn.utils`: clips gradients, skips initial values."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from nnmpi import addons
from nnmpi.addons import finder
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels.precision import cast
from nnmpi.nn.initial import constant
from nnmpi.nn.parameter import Parameter


def clip_factor(norm: float, max_norm: float) -> float:
    """Returns the factor by which a total norm becomes at most `max_norm`."""
    return min(max_norm / (norm + 1e-6), 1.0)


def clip_grad_norm_(
    parameters: Parameter | Iterable[Parameter],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Array:
    """Scales all gradients so that their total norm is at most `max_norm`, and returns the norm
    that they had before, a 0-d array on the device: the host waits for it only with
    `error_if_nonfinite`.

    The norm has the order `norm_type`, which may be inf, and is computed in the accumulation type.
    """
    if not max_norm > 0 or not norm_type > 0:
        raise ValueError(f"max_norm {max_norm} and norm_type {norm_type} must be above 0")
    grads = _gradients(parameters)
    if not grads:
        raise ValueError("clip_grad_norm_: no parameter has a gradient; call it after backward")
    xp = backend.xp_of(grads[0])
    wider = (cast(g, types_of(g.dtype).sums) for g in grads)
    if norm_type == 2:
        norm = xp.sqrt(sum((g * g).sum() for g in wider))
    elif math.isinf(norm_type):
        zero = xp.zeros((), grads[0].dtype)  # if all gradients are empty
        norm = xp.stack([zero, *(xp.absolute(g).max() for g in grads if g.size)]).max()
    else:
        norm = sum((xp.absolute(g) ** norm_type).sum() for g in wider) ** (1 / norm_type)
    if error_if_nonfinite and not np.isfinite(backend.to_host(norm)):
        raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm}, not finite")
    # applied even if it is 1, since a comparison on the host would wait for the device
    factor = xp.minimum(max_norm / (norm + 1e-6), 1.0)
    with np.errstate(invalid="ignore"):  # infinity times 0 is NaN, which a GradScaler finds
        for g in grads:
            g *= factor
    return norm


def clip_grad_value_(parameters: Parameter | Iterable[Parameter], clip_value: float) -> None:
    """Limits each element of all gradients to [-clip_value, clip_value]."""
    if not clip_value >= 0:
        raise ValueError(f"clip_value {clip_value} must be at least 0")
    for g in _gradients(parameters):
        backend.xp_of(g).clip(g, -clip_value, clip_value, out=g)


def _gradients(parameters: Parameter | Iterable[Parameter]) -> list[Array]:
    """Returns the gradients of one parameter or of several, without those that are None."""
    given = [parameters] if isinstance(parameters, Parameter) else parameters
    return [p.grad_array for p in given if p.grad_array is not None]


def skip_init(parameters: Iterable[Parameter]) -> None:
    """Makes zeros, in place of random numbers, the initial values of parameters that have none yet,
    which saves time if a state is loaded next."""
    for p in parameters:
        if not p.is_drawn:
            p.init = constant(0.0)


__path__ += [finder.ENTRY]

if TYPE_CHECKING:
    from nnmpi.addons.recurrent import rnn as rnn
    from nnmpi.addons.torchlike.norms import remove_spectral_norm as remove_spectral_norm
    from nnmpi.addons.torchlike.norms import remove_weight_norm as remove_weight_norm
    from nnmpi.addons.torchlike.norms import spectral_norm as spectral_norm
    from nnmpi.addons.torchlike.norms import weight_norm as weight_norm
    from nnmpi.addons.torchlike.vectors import parameters_to_vector as parameters_to_vector
    from nnmpi.addons.torchlike.vectors import vector_to_parameters as vector_to_parameters
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *addons.names_of(__name__)})

    def __getattr__(name: str) -> Any:
        if where := addons.names_of(__name__).get(name):
            return addons.loaded(where)
        raise finder.missing(finder.no_name(__name__, name, "nn.utils"))
