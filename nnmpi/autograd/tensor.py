"""Tensor: an array that remembers how it was made.

`apply` runs for every op of every step: small models feel each line of it. A name of PyTorch's that
is missing here belongs in `replacements.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from nnmpi import backend
from nnmpi.autograd import methods, replacements, tape
from nnmpi.autograd.arguments import ElementCount, axis_of, constant, flat, index_of
from nnmpi.autograd.ops import elementwise, linear, logic, reduce, shape
from nnmpi.autograd.recording import recording
from nnmpi.autograd.shapes import Shaped
from nnmpi.autograd.tape import OnLeaf, Rest, Storage, TapeNode
from nnmpi.backend import Array
from nnmpi.dtypes import is_float
from nnmpi.kernels import Result, Vjp


def apply(op: Callable[..., Result], *args: Any, **options: Any) -> Tensor:
    """Apply `op` to the arrays of `args`, and record a node for the backward pass.

    Arguments that are not tensors are constants; `options` are passed to the op as they are. The
    value of an op without vjps has no gradient.
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
    record = recording.get()
    if record:
        if True in needs and result.vjps:
            y.requires_grad = True
            y.node = TapeNode(parents, needs, result.vjps, result.prepare, tape.tick())
        if record is not True:
            record(op, args, options, y)
    return y


class Tensor(Shaped):
    """An array with a gradient; arithmetic is NumPy's, `backward` is PyTorch's.

    `data` is the array itself; the tape does not detect writes to it. A leaf (`node` is None) that
    requires a gradient accumulates it in `grad`, which is None until one arrives.
    """

    __array_ufunc__ = None  # so that ndarray + Tensor calls Tensor.__radd__
    __slots__ = ("__weakref__", "grad", "node", "operand", "requires_grad", "storage")

    operand: Array
    """The array that an op takes; unlike `data`, it may be valid until the next op only."""

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        """Keep an array of any backend without a copy; `nnmpi.tensor` copies and converts."""
        if not hasattr(data, "dtype"):
            raise TypeError(
                f"Tensor keeps an array, not {data!r:.40}: write nnmpi.tensor({data!r:.40})"
            )
        if requires_grad and not is_float(data.dtype):
            raise ValueError(f"only floating-point tensors have gradients, this is {data.dtype}")
        self.operand = data
        self.grad: Array | None = None
        self.node: TapeNode | None = None
        self.requires_grad = requires_grad
        self.storage = Storage()

    @property
    def data(self) -> Array:
        """The array."""
        return self.operand

    @data.setter
    def data(self, value: Array) -> None:
        self.operand = value

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self.operand.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return int(self.operand.ndim)

    @property
    def size(self) -> ElementCount:
        """The number of elements; t.size() is the shape, t.size(0) the length of an axis."""
        return ElementCount(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = self.operand.dtype
        return dtype

    def __len__(self) -> int:
        return len(self.operand)

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

    def __index__(self) -> int:
        """The only element as an index of a list, if it is an integer."""
        return operator.index(self.item())

    def item(self) -> Any:
        """The only element as a Python number; waits for the device."""
        return backend.to_host(self.data).item()

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array, which shares memory on the CPU."""
        return backend.to_host(self.data)

    def detach(self) -> Tensor:
        """A tensor with the same memory and no history."""
        t = Tensor(self.operand)
        self.lend(t)
        return t

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values, for np.asarray(tensor); refused where a gradient would be lost."""
        if self.requires_grad and recording.get():
            raise TypeError(replacements.refusal("numpy.asarray"))
        return np.array(self.numpy(), dtype, copy=copy)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """NumPy's function of the values; refused where a gradient would be lost."""
        return replacements.evaluate(function, args, options, Tensor)

    if not TYPE_CHECKING:  # so that type checkers still know which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(replacements.no_attribute(name), name=name, obj=self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    # ---- gradients

    def backward(
        self,
        gradient: Array | Tensor | None = None,
        *,
        on_leaf: OnLeaf | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
        until: Tensor | Sequence[Tensor] | None = None,
    ) -> Rest | None:
        """Add the gradient of this scalar (of sum(self * gradient), if given) to every leaf.

        With `until`, compute only `until.grad`; `finish()` of what is returned does the others.
        Of several tensors each gets its gradient, if one reaches it.
        """
        if create_graph:
            raise TypeError(
                "backward: gradients have no gradients of their own: leave out create_graph=True, "
                "and write the derivative you need with operations of tensors"
            )
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
        view.storage = self.storage

    # ---- writing in place

    def __setitem__(self, index: Any, value: Any) -> None:
        self.operand[index_of(index, Tensor)] = self.to_write(value)
        self.mark_written()

    def to_write(self, value: Any) -> Any:
        """The array or number to write; refused if this tensor or the value needs a gradient.

        Writes are not recorded.
        """
        if self.loses_gradient(value):
            raise RuntimeError(
                f"writing in place to a tensor of shape {self.shape}, where this tensor or the "
                "value needs a gradient, would make it wrong; make a new tensor, or write under "
                "nnmpi.no_grad()"
            )
        if self.storage.is_copy:
            raise RuntimeError(
                f"writing in place to a view of shape {self.shape} would not reach the tensor, "
                "whose memory is in another order: write to the tensor itself, or to view.copy()"
            )
        return constant(value, (self,), Tensor)

    def loses_gradient(self, value: Any) -> bool:
        """Whether operations are recorded and this tensor or the value requires a gradient."""
        either = self.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
        return either and bool(recording.get())

    def mark_written(self) -> None:
        """Record a write: graphs that have used these values can no longer be differentiated."""
        self.storage.written = tape.tick()

    __iadd__ = methods.in_place(apply, elementwise.add)
    __isub__ = methods.in_place(apply, elementwise.subtract)
    __imul__ = methods.in_place(apply, elementwise.multiply)
    __itruediv__ = methods.in_place(apply, elementwise.divide)

    # ---- arithmetic

    __add__, __radd__ = methods.binary(apply, elementwise.add)
    __sub__, __rsub__ = methods.binary(apply, elementwise.subtract)
    __mul__, __rmul__ = methods.binary(apply, elementwise.multiply)
    __truediv__, __rtruediv__ = methods.binary(apply, elementwise.divide)
    __pow__, __rpow__ = methods.binary(apply, elementwise.power)
    __matmul__, __rmatmul__ = methods.binary(apply, linear.matmul)
    __neg__ = methods.unary(apply, elementwise.negative)
    __abs__ = methods.unary(apply, elementwise.absolute)

    # ---- comparisons, and logic of masks: without gradients

    __eq__ = methods.operator(apply, logic.equal)  # type: ignore[arg-type]
    __ne__ = methods.operator(apply, logic.not_equal)  # type: ignore[arg-type]
    __lt__ = methods.operator(apply, logic.less)
    __le__ = methods.operator(apply, logic.less_equal)
    __gt__ = methods.operator(apply, logic.greater)
    __ge__ = methods.operator(apply, logic.greater_equal)
    __and__, __rand__ = methods.binary(apply, logic.bitwise_and)
    __or__, __ror__ = methods.binary(apply, logic.bitwise_or)
    __xor__, __rxor__ = methods.binary(apply, logic.bitwise_xor)
    __invert__ = methods.unary(apply, logic.invert)
    __hash__ = object.__hash__

    # ---- the methods of an ndarray

    def __getitem__(self, index: Any) -> Tensor:
        return apply(shape.getitem, self, index=index_of(index, Tensor))

    sum = methods.reduction(apply, reduce.sum)
    mean = methods.reduction(apply, reduce.mean)
    var = methods.spread(apply, reduce.var)
    std = methods.spread(apply, reduce.std)
    max = methods.reduction(apply, reduce.max)
    min = methods.reduction(apply, reduce.min)
    prod = methods.reduction(apply, reduce.prod)
    any = methods.reduction(apply, logic.any)
    all = methods.reduction(apply, logic.all)
    argmax = methods.reduction(apply, logic.argmax)

    def cumsum(self, axis: int | None = None, *, dim: int | None = None) -> Tensor:
        """The sums of the elements up to each place along `axis`; without one, in C order."""
        k = axis_of(axis, dim)
        t = self.reshape(-1) if k is None else self
        return apply(reduce.cumsum, t, axis=k or 0)

    def reshape(self, *sizes: int | tuple[int, ...]) -> Tensor:
        """A tensor of the same elements in another shape: t.reshape(2, -1), t.reshape((2, -1))."""
        return apply(shape.reshape, self, shape=flat(sizes))

    def view(self, *sizes: int | tuple[int, ...]) -> Tensor:
        """The elements in another shape, as by `reshape`, and in the same memory for who writes.

        Where memory is in another order, as that of images is, writes to the view are refused.
        """
        y = self.reshape(*sizes)
        xp = backend.xp_of(self.operand)
        if y.size and not xp.may_share_memory(y.operand, self.operand):
            y.storage = Storage(is_copy=True)
        return y

    def transpose(self, *axes: int | tuple[int, ...]) -> Tensor:
        """The axes in another order, reversed by default."""
        if self.ndim == 2 and axes in ((0, 1), (-2, -1), (0, -1), (-2, 1)):
            raise ValueError(
                f"transpose{axes} of 2 axes changes nothing in NumPy, and exchanges them in "
                f"PyTorch: write t.T or nnmpi.swapaxes(t, 0, 1), or leave it out"
            )
        return apply(shape.transpose, self, axes=flat(axes) or None)

    def permute(self, *dims: int | tuple[int, ...]) -> Tensor:
        """The axes in this order, all of which are named."""
        return apply(shape.transpose, self, axes=flat(dims))

    def astype(self, dtype: Any) -> Tensor:
        """The values in another type; gradients flow between floating-point types."""
        if not is_float(np.dtype(dtype)):
            return Tensor(self.data.astype(dtype))
        return apply(elementwise.astype, self, dtype=dtype)

    def copy(self) -> Tensor:
        """A copy; gradients flow."""
        return apply(shape.copy, self)
