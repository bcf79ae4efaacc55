"""Tensor: an array that remembers how it was made."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, overload

import numpy as np

from nnmpi import backend
from nnmpi.autograd import tape
from nnmpi.autograd.arguments import array_on, flat
from nnmpi.autograd.ops import elementwise, linear, reduce, shape
from nnmpi.autograd.recording import recording
from nnmpi.autograd.tape import Memory, Node, OnLeaf, Rest
from nnmpi.backend import Array
from nnmpi.kernels.result import Result, Vjp

Axis = int | tuple[int, ...] | None


def _binary(op: Callable[..., Result]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The operator and its reflection."""

    def straight(self: Tensor, other: Any) -> Tensor:
        return apply(op, self, other)

    def reflected(self: Tensor, other: Any) -> Tensor:
        return apply(op, other, self)

    return straight, reflected


def _in_place(op: Callable[..., Result]) -> Callable[[Tensor, Any], Tensor]:
    """An operator that writes into its left side."""

    def method(self: Tensor, other: Any) -> Tensor:
        is_result = self.node is not None or not self.requires_grad
        if is_result and self._is_followed(other):
            return apply(op, self, other)  # `loss += term`: the name goes on to a new tensor
        self._refuse_write(other)
        new = op(self.data, _constant(other, (self,))).value
        if not np.can_cast(new.dtype, self.dtype, "same_kind"):
            raise TypeError(f"{new.dtype} results do not fit in place into a {self.dtype} tensor")
        self[...] = new
        return self

    return method


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    """An elementwise comparison; with None it is Python's own, which is one of identity."""

    def method(self: Tensor, b: Any) -> Tensor:
        if b is None:
            return NotImplemented  # type: ignore[no-any-return]
        return Tensor(array_on(backend.of(self.data), compare(self.data, _constant(b, (self,)))))

    return method


class Tensor:
    """An array with a gradient; arithmetic is NumPy's, `backward` is PyTorch's.

    `data` is the array itself; what is written there directly is not seen by
    the tape. A leaf (`node` is None) that requires a gradient sums it up in
    `grad`, which is None when nothing has arrived since it was last cleared.
    """

    __array_ufunc__ = None  # ndarray + Tensor is ours to answer
    __slots__ = ("__weakref__", "data", "grad", "memory", "node", "requires_grad")

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        """Take `data`, an array of any backend, as it is; `nnmpi.tensor` copies and converts."""
        if requires_grad and data.dtype.kind != "f":
            raise ValueError(f"only floating-point tensors have gradients, this is {data.dtype}")
        self.data = data
        self.grad: Array | None = None
        self.node: Node | None = None
        self.requires_grad = requires_grad
        self.memory = Memory()

    # ---- what it holds

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return int(self.data.ndim)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({np.array2string(self.numpy(), separator=', ', prefix='tensor(')}{grad})"

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def item(self) -> Any:
        """The one number it holds, as a Python number; waits for the device."""
        return backend.to_host(self.data).item()

    def numpy(self) -> np.ndarray:
        """Its values as a NumPy array, the very same memory on the CPU."""
        return backend.to_host(self.data)

    def detach(self) -> Tensor:
        """The same values in the same memory, cut off from how they were made."""
        t = Tensor(self.data)
        t.memory = self.memory
        return t

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """What np.asarray(tensor) gives: its values."""
        return np.array(self.numpy(), dtype, copy=copy)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    # ---- gradients

    @overload
    def backward(
        self,
        gradient: Array | Tensor | None = None,
        *,
        on_leaf: OnLeaf | None = None,
        retain_graph: bool = False,
    ) -> None: ...

    @overload
    def backward(
        self,
        gradient: Array | Tensor | None = None,
        *,
        on_leaf: OnLeaf | None = None,
        retain_graph: bool = False,
        until: Tensor,
    ) -> Rest: ...

    def backward(
        self,
        gradient: Array | Tensor | None = None,
        *,
        on_leaf: OnLeaf | None = None,
        retain_graph: bool = False,
        until: Tensor | None = None,
    ) -> Rest | None:
        """Add the gradient of this scalar (of sum(self * gradient), if given) to every leaf.

        With `until`, compute only `until.grad`; `finish()` of what is returned does the others.
        """
        given = gradient.data if isinstance(gradient, Tensor) else gradient
        return tape.backward(self, tape.seed(self, given), on_leaf, retain_graph, until)

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Take a contribution to this leaf's gradient."""
        new = vjp(g, None)
        total = new if self.grad is None else self.grad + new
        self.grad = backend.xp_of(self.data).array(total, self.data.dtype)

    # ---- writing in place

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse_write(value)
        self.data[_index(index)] = _constant(value, (self,))
        self.mark_written()

    def _refuse_write(self, value: Any) -> None:
        """A write leaves no node, so nothing on either side of it may be followed."""
        if self._is_followed(value):
            raise RuntimeError(
                f"writing in place to a tensor of shape {self.shape} where a gradient should pass "
                "would corrupt it; make a new tensor, or write under nnmpi.no_grad()"
            )

    def _is_followed(self, value: Any) -> bool:
        """Whether a gradient should pass through this tensor or the value."""
        either = self.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
        return either and recording.get()

    def mark_written(self) -> None:
        """Tell the tape that the numbers have changed: older graphs that used them are void."""
        self.memory.written = tape.tick()

    __iadd__ = _in_place(elementwise.add)
    __isub__ = _in_place(elementwise.subtract)
    __imul__ = _in_place(elementwise.multiply)
    __itruediv__ = _in_place(elementwise.divide)

    # ---- arithmetic

    __add__, __radd__ = _binary(elementwise.add)
    __sub__, __rsub__ = _binary(elementwise.subtract)
    __mul__, __rmul__ = _binary(elementwise.multiply)
    __truediv__, __rtruediv__ = _binary(elementwise.divide)
    __pow__, __rpow__ = _binary(elementwise.power)
    __matmul__, __rmatmul__ = _binary(linear.matmul)

    def __neg__(self) -> Tensor:
        return apply(elementwise.negative, self)

    def __abs__(self) -> Tensor:
        return apply(elementwise.absolute, self)

    # ---- comparisons: tensors of booleans, without gradients

    __eq__ = _comparison(operator.eq)  # type: ignore[assignment]
    __ne__ = _comparison(operator.ne)  # type: ignore[assignment]
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __hash__ = object.__hash__

    # ---- the methods of an ndarray

    def __getitem__(self, index: Any) -> Tensor:
        return apply(shape.getitem, self, index=_index(index))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum over `axis`."""
        return apply(reduce.sum, self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The mean over `axis`."""
        return apply(reduce.mean, self, axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The variance over `axis`, divided by n as in NumPy."""
        d = self - self.mean(axis, keepdims=True)
        return (d * d).mean(axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The largest number over `axis`."""
        return apply(reduce.max, self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest number over `axis`."""
        return apply(reduce.min, self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None) -> Tensor:
        """Where the largest number is; without a gradient."""
        return Tensor(array_on(backend.of(self.data), self.data.argmax(axis)))

    def reshape(self, *sizes: int | tuple[int, ...]) -> Tensor:
        """The same numbers under another shape: `t.reshape(2, -1)` or `t.reshape((2, -1))`."""
        return apply(shape.reshape, self, shape=flat(sizes))

    def transpose(self, *axes: int | tuple[int, ...]) -> Tensor:
        """The axes in another order, reversed by default."""
        return apply(shape.transpose, self, axes=flat(axes) or None)

    @property
    def T(self) -> Tensor:
        """The axes reversed."""
        return self.transpose()

    def astype(self, dtype: Any) -> Tensor:
        """The numbers in another type; between floating-point types gradients flow."""
        if np.dtype(dtype).kind != "f":
            return Tensor(self.data.astype(dtype))
        return apply(elementwise.astype, self, dtype=dtype)

    def copy(self) -> Tensor:
        """The same numbers in memory of their own; gradients flow."""
        return apply(shape.copy, self)


def apply(op: Callable[..., Result], *args: Any, **options: Any) -> Tensor:
    """Carry out `op` on the arrays behind `args`, and remember how to go back.

    Arguments that are not tensors are constants; `options` go to the op as they are.
    """
    arrays: list[Any] = []
    parents: list[Tensor | None] = []
    needs: list[bool] = []
    for a in args:
        if isinstance(a, Tensor):
            arrays.append(a.data)
            parents.append(a)
            needs.append(a.requires_grad)
        else:
            arrays.append(a if a is None else _constant(a, args))
            parents.append(None)
            needs.append(False)
    result = op(*arrays, **options)
    value = result.value
    y = Tensor(value if hasattr(value, "__setitem__") else np.asarray(value))
    if result.is_view and parents[0] is not None:
        y.memory = parents[0].memory
    if True in needs and recording.get():
        y.requires_grad = True
        y.node = Node(parents, needs, result.vjps, result.prepare, tape.tick())
    return y


def _constant(value: Any, beside: tuple[Any, ...]) -> Any:
    """What an op gets for an argument that is not followed, on the backend of those beside it.

    Numbers stay Python numbers, NumPy's included: they have no type to impose.
    """
    if isinstance(value, np.generic):  # before float, which np.float64 is too
        return value.item()
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Tensor):
        return value.data
    like = next(t.data for t in beside if isinstance(t, Tensor))
    return value if type(value) is type(like) else array_on(backend.of(like), value)


def _index(index: Any) -> Any:
    """The arrays behind an index of tensors, arrays, slices and numbers."""
    if isinstance(index, tuple):
        return tuple(_index(k) for k in index)
    return index.data if isinstance(index, Tensor) else index
