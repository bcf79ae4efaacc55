"""Functions that join parameters to one vector, and copy a vector back into parameters."""

from collections.abc import Iterable
from typing import Any

from nnmpi.autograd import Tensor, on_host
from nnmpi.autograd.functional import concatenate
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.state import assign


def parameters_to_vector(parameters: Iterable[Parameter]) -> Tensor:
    """Returns the elements of all parameters one behind the other; gradients flow back."""
    return concatenate([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Any, parameters: Iterable[Parameter]) -> None:
    """Copies the elements of a vector into parameters, one behind the other."""
    values, listed, at = on_host(vec), [*parameters], 0
    if values.ndim != 1 or values.size < sum(p.size for p in listed):
        raise ValueError(
            f"vector_to_parameters: values of shape {values.shape} for "
            f"{sum(p.size for p in listed):,} elements: give a vector with all of them"
        )
    for p in listed:
        assign(p, values[at : at + p.size].reshape(p.shape))
        at += p.size
