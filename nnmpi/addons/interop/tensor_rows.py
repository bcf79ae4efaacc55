"""The memory of PyTorch's tensors as 1-D arrays of NumPy."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from nnmpi.addons.torchlike.distributed.rows import Then
from nnmpi.arrays.backend import Array

Tensors: TypeAlias = Sequence[Any]
"""A list of tensors of PyTorch; calls with one tensor pass a list of length 1."""


def row_of(tensor: torch.Tensor, as_bytes: bool = False) -> tuple[Array, Then]:
    """Returns the memory of a tensor as a 1-D array of elements or (`as_bytes`) bytes, and a
    function to call after a write, which copies it back if the tensor is not contiguous."""
    values = tensor.detach()
    if values.device.type != "cpu":
        raise TypeError(
            f"the backend nnmpi takes tensors on the CPU, not on {values.device}: copy this one to "
            "the CPU, or make a group of another backend for such tensors"
        )
    flat = values.contiguous().view(-1)
    has_gaps = flat.data_ptr() != values.data_ptr()
    back = partial(values.copy_, flat.view(values.shape)) if has_gaps else _nothing
    if as_bytes:
        return flat.view(torch.uint8).numpy(), back
    if flat.dtype is torch.bfloat16:
        import ml_dtypes  # NumPy has that type from this package alone

        return flat.view(torch.uint16).numpy().view(ml_dtypes.bfloat16), back
    return flat.numpy(), back


bytes_of = partial(row_of, as_bytes=True)
"""`row_of` as bytes, for tensors of any type that are moved but not summed."""


def all_bytes(tensors: Tensors) -> tuple[list[Array], list[Then]]:
    pairs = [bytes_of(t) for t in tensors]
    return [row for row, _ in pairs], [back for _, back in pairs]


def check_types(output: torch.Tensor, input: torch.Tensor) -> None:
    if output.dtype != input.dtype:
        raise TypeError(f"the output is of {output.dtype}, and the input of {input.dtype}")


def copy_all(outputs: Tensors, values: torch.Tensor) -> None:
    for output, value in zip(outputs, values, strict=True):
        output.detach().copy_(value)


def _nothing() -> None:
    pass
