"""Tensor: an array that remembers how it was made."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd import numpy_calls, tape
from nnmpi.autograd.arguments import array_on, constant, flat, index_of
from nnmpi.autograd.ops import elementwise, linear, reduce, shape
from nnmpi.autograd.recording import recording
from nnmpi.autograd.tape import Memory, Node, OnLeaf, Rest
from nnmpi.backend import Array
from nnmpi.kernels.result import Result, Vjp


def _binary(op: Callable[..., Result]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The operator and its reflection."""

    def straight(self: Tensor, other: Any) -> Tensor:
        return apply(op, self, other)

    def reflected(self: Tensor, other: Any) -> Tensor:
        return apply(op, other, self)

    return straight, reflected


def _in_place(op: Callable[..., Result]) -> Callable[[Tensor, Any], Tensor]:
    """An operator that writes into its left operand."""

    def method(self: Tensor, other: Any) -> Tensor:
        leaf = self.requires_grad and self.node is None
        if self._needs_gradient(other) and not leaf:
            return apply(op, self, other)  # `loss += term`: the name is bound to a new tensor
        self._refuse_write(other)
        new = op(self.data, constant(other, (self,), Tensor)).value
        if not np.can_cast(new.dtype, self.dtype, "same_kind"):
            raise TypeError(f"{new.dtype} results do not fit in place into a {self.dtype} tensor")
        self[...] = new
        return self

    return method


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    """An elementwise comparison; with None it compares identities, as Python does."""

    def method(self: Tensor, b: Any) -> Tensor:
        if b is None:
            return NotImplemented  # type: ignore[no-any-return]
        return Tensor(
            array_on(backend.of(self.data), compare(self.data, constant(b, (self,), Tensor)))
        )

    return method


class Tensor:
    """An array with a gradient; arithmetic is NumPy's, `backward` is PyTorch's.

    `data` is the array itself; the tape does not detect writes to it. A leaf (`node` is None) that
    requires a gradient accumulates it in `grad`, which is None until one arrives.
    """

    __array_ufunc__ = None  # so that ndarray + Tensor calls Tensor.__radd__
    __slots__ = ("__weakref__", "data", "grad", "memory", "node", "requires_grad")

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        """Keep an array of any backend without a copy; `nnmpi.tensor` copies and converts."""
        if requires_grad and data.dtype.kind != "f":
            raise ValueError(f"only floating-point tensors have gradients, this is {data.dtype}")
        self.data = data
        self.grad: Array | None = None
        self.node: Node | None = None
        self.requires_grad = requires_grad
        self.memory = Memory()

    @property
    def operand(self) -> Array:
        """The array that an op takes; unlike `data`, it may be valid until the next op only."""
        return self.data

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
        """Its only element as a Python number; waits for the device."""
        return backend.to_host(self.data).item()

    def numpy(self) -> np.ndarray:
        """Its values as a NumPy array, which shares memory on the CPU."""
        return backend.to_host(self.data)

    def detach(self) -> Tensor:
        """A tensor with the same memory and no history."""
        t = Tensor(self.operand)
        self.lend(t)
        return t

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values, for np.asarray(tensor); refused where a gradient would be lost."""
        if self.requires_grad and recording.get():
            raise TypeError(numpy_calls.refusal("asarray"))
        return np.array(self.numpy(), dtype, copy=copy)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """NumPy's function of the values; refused where a gradient would be lost."""
        return numpy_calls.evaluate(function, args, options, Tensor)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    # ---- gradients

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
        """Add `vjp(g, out)` to this leaf's gradient."""
        new = vjp(g, None)
        total = new if self.grad is None else self.grad + new
        self.grad = backend.xp_of(self.data).array(total, self.data.dtype)

    def refresh(self, made: int) -> None:
        """Before the vjps of the node number `made` run: the values are where it has seen them."""

    def lend(self, view: Tensor) -> None:
        """`view` lies in the memory of this tensor."""
        view.memory = self.memory

    # ---- writing in place

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse_write(value)
        given = constant(value, (self,), Tensor)
        self.operand[index_of(index, Tensor)] = given
        self.mark_written()

    def _refuse_write(self, value: Any) -> None:
        """Writes are not recorded, so neither the tensor nor the value may need a gradient."""
        if self._needs_gradient(value):
            raise RuntimeError(
                f"writing in place to a tensor of shape {self.shape}, where this tensor or the "
                "value needs a gradient, would make it wrong; make a new tensor, or write under "
                "nnmpi.no_grad()"
            )

    def _needs_gradient(self, value: Any) -> bool:
        """Whether operations are recorded and this tensor or the value requires a gradient."""
        either = self.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
        return either and recording.get()

    def mark_written(self) -> None:
        """Record a write: graphs that have used these values can no longer be differentiated."""
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
        return apply(shape.getitem, self, index=index_of(index, Tensor))

    def sum(self, axis: reduce.Axis = None, keepdims: bool = False) -> Tensor:
        """The sum over `axis`."""
        return apply(reduce.sum, self, axis=axis, keepdims=keepdims)

    def mean(self, axis: reduce.Axis = None, keepdims: bool = False) -> Tensor:
        """The mean over `axis`."""
        return apply(reduce.mean, self, axis=axis, keepdims=keepdims)

    def var(self, axis: reduce.Axis = None, *, keepdims: bool = False) -> Tensor:
        """The variance over `axis`; the divisor is n, as in NumPy."""
        d = self - self.mean(axis, keepdims=True)
        return (d * d).mean(axis, keepdims)

    def max(self, axis: reduce.Axis = None, keepdims: bool = False) -> Tensor:
        """The largest element over `axis`."""
        return apply(reduce.max, self, axis=axis, keepdims=keepdims)

    def min(self, axis: reduce.Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest element over `axis`."""
        return apply(reduce.min, self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None) -> Tensor:
        """The index of the largest element; it has no gradient."""
        return Tensor(array_on(backend.of(self.data), self.data.argmax(axis)))

    def reshape(self, *sizes: int | tuple[int, ...]) -> Tensor:
        """The same elements in another shape: `t.reshape(2, -1)` or `t.reshape((2, -1))`."""
        return apply(shape.reshape, self, shape=flat(sizes))

    def transpose(self, *axes: int | tuple[int, ...]) -> Tensor:
        """The axes in another order, reversed by default."""
        return apply(shape.transpose, self, axes=flat(axes) or None)

    @property
    def T(self) -> Tensor:
        """The axes reversed."""
        return self.transpose()

    def astype(self, dtype: Any) -> Tensor:
        """The values in another type; gradients flow between floating-point types."""
        if np.dtype(dtype).kind != "f":
            return Tensor(self.data.astype(dtype))
        return apply(elementwise.astype, self, dtype=dtype)

    def copy(self) -> Tensor:
        """A copy; gradients flow."""
        return apply(shape.copy, self)


def apply(op: Callable[..., Result], *args: Any, **options: Any) -> Tensor:
    """Apply `op` to the arrays of `args`, and record a node for the backward pass.

    Arguments that are not tensors are constants; `options` are passed to the op as they are.
    """
    arrays: list[Any] = []
    parents: list[Tensor | None] = []
    needs: list[bool] = []
    for a in args:
        if isinstance(a, Tensor):
            arrays.append(a.operand)
            parents.append(a)
            needs.append(a.requires_grad)
        else:
            arrays.append(a if a is None else constant(a, args, Tensor))
            parents.append(None)
            needs.append(False)
    result = op(*arrays, **options)
    value = result.value
    y = Tensor(value if hasattr(value, "__setitem__") else np.asarray(value))
    if result.is_view and parents[0] is not None:
        parents[0].lend(y)
    if True in needs and recording.get():
        y.requires_grad = True
        y.node = Node(parents, needs, result.vjps, result.prepare, tape.tick())
    return y
