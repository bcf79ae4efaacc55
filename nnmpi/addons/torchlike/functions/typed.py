"""PyTorch's typed constructors, such as LongTensor, each for tensors of one dtype, and the methods
`type` and `type_as`.

    LongTensor([1, 2])          an int64 tensor with these elements
    t.type("torch.LongTensor")  t converted to int64; t.type() returns such a name
"""

import builtins
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.autograd.creation import empty
from nnmpi.autograd.functional import as_tensors, tensor
from nnmpi.autograd.tensor import Tensor


@dataclass(frozen=True)
class TypedConstructor:
    """The constructor of tensors of one type: LongTensor([1, 2]) has these elements, and
    LongTensor(2, 3) this shape; isinstance(t, LongTensor) tests the type of t."""

    name: str
    dtype: np.dtype[Any]

    def __call__(self, *args: Any, device: Any = None) -> Tensor:
        """A tensor with the elements of a list, an array or a tensor, or of the given sizes."""
        if len(args) == 1 and not isinstance(args[0], int):
            self._check(args[0])
            return tensor(args[0], self.dtype, device=device)
        return empty(*(args or (0,)), dtype=self.dtype, device=device)

    def _check(self, data: Any) -> None:
        """Raises TypeError for a tuple of at most eight integers: in PyTorch it is a size, if it is
        t.size(), and elements otherwise."""
        if isinstance(data, tuple) and len(data) <= 8 and {*map(builtins.type, data)} == {int}:
            raise TypeError(
                f"{data} may be t.size() or elements: write nnmpi.zeros({data}) for a tensor of "
                f"this size, nnmpi.{self.name}({[*data]}) for one with these elements"
            )

    def array(self, data: Any, *others: Any) -> tuple[Array, bool]:
        """Returns (array, requires_grad) from (a list, requires_grad), or from sizes."""
        if data is None or isinstance(data, float):
            remedy = f"nnmpi.tensor({'number' if data is None else data})"
            raise TypeError(f"Tensor takes a list or sizes, not {data}: write {remedy}")
        if others[0] is True or others[0] is False:
            sizes, needs = () if data == () else (data,), others[0]
        else:
            sizes, needs = (data, *others), False
        return self(*sizes)._array, needs

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype == self.dtype

    def __str__(self) -> str:
        return f"torch.{self.name}"


BoolTensor = TypedConstructor("BoolTensor", np.dtype("bool"))
ByteTensor = TypedConstructor("ByteTensor", np.dtype("uint8"))
CharTensor = TypedConstructor("CharTensor", np.dtype("int8"))
ShortTensor = TypedConstructor("ShortTensor", np.dtype("int16"))
IntTensor = TypedConstructor("IntTensor", np.dtype("int32"))
LongTensor = TypedConstructor("LongTensor", np.dtype("int64"))
HalfTensor = TypedConstructor("HalfTensor", np.dtype("float16"))
FloatTensor = TypedConstructor("FloatTensor", np.dtype("float32"))
DoubleTensor = TypedConstructor("DoubleTensor", np.dtype("float64"))

_BY_NAME = {
    str(c): c
    for c in (
        *(BoolTensor, ByteTensor, CharTensor, ShortTensor, IntTensor, LongTensor),
        *(HalfTensor, FloatTensor, DoubleTensor),
    )
}


def type(t: Any, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The tensor converted to a dtype, also given as `LongTensor` or "torch.LongTensor"; without a
    dtype, the name of the tensor's type, as "torch.FloatTensor"."""
    (t,) = as_tensors(t)
    if dtype is None:
        names = [name for name, c in _BY_NAME.items() if c.dtype == t.dtype]
        return names[0] if names else str(t.dtype)
    if isinstance(dtype, str):
        dtype = _BY_NAME.get(dtype, dtype)
    return t.to(dtype.dtype if isinstance(dtype, TypedConstructor) else dtype)


def type_as(t: Any, other: Tensor) -> Tensor:
    """The tensor converted to the type of `other`, and moved to its device."""
    (t,) = as_tensors(t)
    converted: Tensor = t.to(other)
    return converted


class _OfVariable(builtins.type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor)


class Variable(metaclass=_OfVariable):
    """PyTorch's old name of tensors: Variable(t) is a tensor in the memory of t, without its
    history, and isinstance(t, Variable) is true of all tensors."""

    def __new__(cls, data: Any, requires_grad: bool = False, volatile: bool = False) -> Any:
        """Raises TypeError if `data` is no tensor."""
        if not isinstance(data, Tensor):
            raise TypeError(
                f"Variable takes a tensor, not a {builtins.type(data).__name__}: "
                "write nnmpi.tensor(x)"
            )
        return data.detach().requires_grad_(requires_grad)


def is_tensor(obj: object) -> bool:
    """True if an object is a tensor."""
    return isinstance(obj, Tensor)
