"""Types and devices of the parameters and buffers of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd.arguments import one_of, type_and_device
from nnmpi.autograd.torch_names import to_method
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore


class Converted:
    """The base of Module that converts its tensors to a type, and moves them to a device."""

    parameters: Callable[..., Iterator[Parameter]]
    _entries: Callable[..., Iterator[tuple[str, Any, str]]]

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        on: Backend | None = None,
        device: str | Backend | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Convert to a type and move to a device; the parameters move into one flat store.

        By position these are PyTorch's: to("cpu"), to(device), to("float64"), to(device, dtype).
        """
        kind, where = type_and_device(args, dtype, one_of("on", on, "device", device))
        try:
            is_type = kind is None or is_float(np.dtype(kind))
        except TypeError:
            is_type = False
        if not is_type:
            raise ValueError(
                f"to: {kind!r:.60} is neither a floating-point type nor a device: give one of "
                'these, such as "float32", or "cuda"'
            )
        parameters = list(self.parameters())
        first = next((p.data for p in parameters if p.is_drawn), None)
        kind = kind or (np.float32 if first is None else first.dtype)
        where = where or (CPU if first is None else backend.of(first))
        if parameters:
            FlatStore(parameters, kind, where)
        self.convert_buffers(kind, where)
        return self

    def convert_buffers(self, dtype: Any, on: Backend) -> None:
        """Convert buffers to a type, unless they hold integers, and move them to a backend."""
        for _, m, name in self._entries("_buffers"):
            old = getattr(m, name)
            object.__setattr__(m, name, on.asarray(old, dtype if is_float(old.dtype) else None))

    # ---- types and devices; last, since these are names of Python's types

    cpu, cuda = to_method("cpu"), to_method("cuda")
    half, float, double = to_method("float16"), to_method("float32"), to_method("float64")
