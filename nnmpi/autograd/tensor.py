"""Tensor: an array that remembers how it was made.

`apply` runs for every op of every step, so small models feel each of its lines. Advice for a name
of PyTorch that is missing belongs in `addons/torchlike/replacements.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import iadd, imul, isub, itruediv, setitem
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from nnmpi.addons import finder, loaded
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import fitting, is_float
from nnmpi.arrays.kernels import Result, Vjp, precision
from nnmpi.arrays.meta import as_constant, copy_of, is_meta, owner
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.autograd import tape
from nnmpi.autograd.arguments import axis_of
from nnmpi.autograd.method_factories import (
    both_operators,
    extreme,
    in_place,
    method_of,
    operator_of,
    reduction,
    spread,
    summing,
)
from nnmpi.autograd.ops import elementwise, linear, logic, reduce, shape
from nnmpi.autograd.recording import (
    DetachedStorage,
    GradientStorage,
    Sharing,
    Storage,
    TapeNode,
    memory_needed,
    memory_row,
    op_types,
    recording,
)
from nnmpi.autograd.tape import OnLeaf, UnfinishedBackward
from nnmpi.autograd.torch_names import METHODS_ON_USE, NAMES, TorchNames

_types_of_ops, _recorder = op_types.get, recording.get  # looked up once: small models feel it


def apply(op: Callable[..., Result], *args: Any, **options: Any) -> Tensor:
    """Applies `op` to the arrays of `args`, and records a node for the backward pass.

    Arguments that are not tensors are constants; `options` go to the op unchanged. The result of an
    op without vjps has no gradient.
    """
    args = args if (types := _types_of_ops()) is None else types.arguments(op, args, options)
    record = _recorder()
    arrays: list[Any] = []
    parents: list[Any] = []
    needs: list[bool] = []
    for a in args:
        if isinstance(a, Tensor):
            if (sharing := a.storage.sharing) and (sharing.renewed or sharing.outdated):
                a.renew()
            arrays.append(a._array)
            if record:
                needed = a._requires_grad
                parents.append(a.node or (a if needed or a.is_refreshed else a.storage))
                needs.append(needed)
        else:
            arrays.append(a if a is None or type(a) is float else constant(a, args))
            parents.append(None)
            needs.append(False)
    result: Any = op(*arrays, **options)
    # NumPy's reductions return scalars, which are not arrays
    y = Tensor(value if hasattr(value := result.value, "__setitem__") else np.asarray(value))
    if result.is_view and isinstance(args[0], Tensor):
        args[0].share(y)
    if record:
        if True in needs and (vjps := result.vjps):
            y._requires_grad = True
            if False in needs:
                vjps = [vjp if need else None for vjp, need in zip(vjps, needs, strict=False)]
            y.node = TapeNode(y, parents, needs, vjps, result.prepare)
        if record is not True:
            record(op, args, options, y)
    return y


class Tensor(TorchNames):
    """An array with a gradient, whose methods mean what they mean in PyTorch.

    A leaf (`node` is None) that requires a gradient accumulates it in `grad`, which is None until
    one arrives. nnmpi itself reads the arrays `array` and `grad_array`. `data` and `grad` are
    tensors in the same memory, made at each use; the tape does not notice writes to `data`.
    `viewed` is the tensor of which this one is a view: a write to one changes both histories.
    """

    applied = staticmethod(apply)
    __slots__ = ("__weakref__", "grad_array", "node", "viewed")
    grad_array: Array | None
    node: TapeNode | None
    viewed: Tensor | None
    has_grad: bool = True  # but for parameters, whose gradient has memory before it arrives

    def __init__(self, data: Array = (), requires_grad: bool = False, *sizes: int) -> None:
        """Keeps an array of any backend without copying it; `nnmpi.tensor` copies and converts.

        As in PyTorch, Tensor([1, 2]) has these elements, and Tensor(2, 3) this size, in float32.
        """
        if not hasattr(data, "dtype"):
            data, requires_grad = NAMES.needed("FloatTensor").array(data, requires_grad, *sizes)
        if requires_grad and not is_float(data.dtype):
            raise ValueError(f"only floating-point tensors have gradients; this is {data.dtype}")
        self._array = data
        self.grad_array = self.node = self.viewed = None
        self._requires_grad = requires_grad
        self.storage = Storage()

    @property
    def array(self) -> Array:
        """The array of the tensor; writes to it are not detected by the tape."""
        self.renew()
        return self._array

    @array.setter
    def array(self, value: Array) -> None:
        self._array = value

    @property
    def data(self) -> Tensor:
        """The values as a tensor in this memory without history; the tape misses writes."""
        t = Tensor(self.array)
        t.storage = self.storage.without_history()
        return t

    @data.setter
    def data(self, value: Any) -> None:
        if self.storage.keeps_memory:
            self.array[...] = array_of(value)
            return
        if isinstance(value, Tensor):
            if value._array is self._array:  # after `t.data += x`
                return
            value.share(self)
            self.viewed, self.storage = None, DetachedStorage(self.storage)
        self.array = array_of(value)

    @property
    def grad(self) -> Tensor | None:
        """The gradient as a tensor, which shares its memory; None until a gradient arrives."""
        array = self.grad_array
        if array is None:
            return None
        t = Tensor(array)
        t.storage = GradientStorage()
        return t

    @grad.setter
    def grad(self, value: Any) -> None:
        self.grad_array = None if value is None else array_of(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self._array.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return int(self._array.ndim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = self._array.dtype
        return dtype

    def detach(self) -> Tensor:
        """A tensor that shares the memory but has no history, so no gradient flows through it."""
        t = Tensor(self._array)
        self.share(t)
        t.viewed, t.storage = None, DetachedStorage(t.storage)
        return t

    if not TYPE_CHECKING:  # type checkers still report attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            if where := METHODS_ON_USE.get(name):
                return MethodType(loaded(where), self)
            raise AttributeError(finder.no_attribute(name), name=name, obj=self)

    # ---- gradients

    def backward(
        self,
        gradient: Array | Tensor | None = None,
        *,
        on_leaf: OnLeaf | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
        until: Tensor | Sequence[Tensor] | None = None,
    ) -> UnfinishedBackward | None:
        """Adds the gradient of this scalar (or of sum(self * gradient)) to `grad` of every leaf.

        With `until`, a tensor on which this one depends, computes only `until.grad`; `finish()` of
        the returned object computes the others. Of several tensors in `until`, each gets its
        gradient if one reaches it. `on_leaf(leaf)` is called when a leaf's gradient is final.
        """
        if create_graph:
            raise TypeError(
                "backward: gradients have no gradients of their own: leave out create_graph=True, "
                "and write the derivative that you need as tensor operations"
            )
        given = gradient.array if isinstance(gradient, Tensor) else gradient
        seed = tape.seed(self, given)
        if until is not None:
            from nnmpi.autograd.half_pass import first_half  # few passes are in halves

            return first_half(self, seed, on_leaf, retain_graph, until)
        tape.backward(self, seed, on_leaf, retain_graph)
        return None

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Adds vjp(g, out) to the gradient of this leaf; the vjp may write to `out`, its memory."""
        if self.grad_array is not None:
            precision.add_to(self.grad_array, vjp(g, None))
            return
        target = backend.xp_of(self._array).empty_like(self.array)
        out = target if target.flags.c_contiguous else None  # vjps write in C order
        if (new := vjp(g, out)) is not target:
            target[...] = new  # a copy: it may be g itself (as of add), which other tensors get too
        self.grad_array = target

    def share(self, view: Tensor) -> None:
        """Makes `view` share this tensor's Storage, which records in-place writes."""
        view.viewed, view.storage = self, self.storage
        if self.storage.sharing is None:
            self.storage.sharing = Sharing()

    # ---- writing in place

    @property
    def is_replaceable(self) -> bool:
        """True if it may get other memory: not a parameter, which lies in a flat buffer."""
        return type(self) is Tensor

    def may_become(self, y: Tensor) -> bool:
        """True if this tensor can become the result y of an in-place op: neither it nor one of
        which it is a view is a leaf with a gradient, and y has its shape and type."""
        old, new, sharing = self._array, y._array, self.storage.sharing
        return (
            self.is_replaceable
            and bool(recording.get())
            and (self.node is not None or not self._requires_grad)
            and new.dtype == old.dtype
            and new.shape == old.shape
            and is_float(old.dtype)
            and (sharing is None or memory_needed("may_write")(self))
        )

    def before_write(self) -> Tensor:
        """Returns the tensor that an in-place op is to read: this one, or a copy with its history
        if other tensors share the memory, since the backward pass may read the old values."""
        if self.storage.sharing is None:
            return self
        copy: Tensor = memory_needed("copied")(self)
        return copy

    def become(self, y: Tensor) -> Tensor:
        """Makes this tensor the result y of an in-place op, with its value and its history. The old
        array is not written to, unless other tensors share it, so earlier ops still have it."""
        if self.storage.sharing is not None:
            memory_needed("write")(self, y)
            return self
        self._array, self.node, self.storage = y._array, y.node, y.storage
        self._requires_grad = y.requires_grad
        return self

    def __getstate__(self) -> tuple[Any, ...]:
        """The values, for copies and pickle; raises RuntimeError for a result with a history."""
        self.renew()
        if self.node is not None:
            raise RuntimeError(
                f"a result of shape {self.shape} that needs a gradient cannot be copied by "
                "deepcopy or pickle, which would lose it: copy t.detach(), or write t.clone()"
            )
        return self._array, self._requires_grad, self.grad_array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        Tensor.__init__(self, *state[:2])
        self.grad_array = state[2]

    def __copy__(self) -> Tensor:
        """Another tensor in the same memory, without history."""
        self.renew()
        return self.detach().requires_grad_(self._requires_grad)

    def renew(self) -> None:
        """Updates the history, if a tensor in the same memory was written to in place."""
        if (sharing := self.storage.sharing) and (sharing.renewed or sharing.outdated):
            memory_needed("renew")(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        first, index = shape.split_index(index_of(index, self), self.ndim)
        if first is not None:  # an array would make a copy
            first = tuple(int(k) if hasattr(k, "ndim") else k for k in first)
        if self.loses_gradient(value) and self.may_become(self):
            if first is not None:
                self[first][index] = value
                return
            if memory_needed("is_at")(self, index, value):
                return
            self.become(apply(shape.set_elements, self, value, index=index))
            return
        # NumPy writes no array of one element into one place, as PyTorch does
        written = self.to_write(value)
        self.drop_data_for(index)
        is_one = getattr(written, "size", 0) == 1
        self.write(written.reshape(()) if is_one else written, index, first)

    def write(self, new: Any, index: Any = ..., first: Any = None) -> None:
        """Writes an array or a number to t[index], or to `t[first][index]`, and records the write.
        `to_write` must have checked it, or what it is computed from."""
        self.drop_data_for(new)
        target = self._array if first is None else self._array[first]
        self.write_by(setitem, target, index, new)

    def write_by(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function that writes to the tensor's array, and records the write."""
        try:
            function(*args)
        except ValueError:
            self.check_writable()
            raise
        self.mark_written()

    def check_writable(self) -> None:
        """Raises RuntimeError if NumPy does not write to the tensor's array."""
        array = self._array
        if not is_meta(array) and not getattr(array.flags, "writeable", True):
            raise RuntimeError(
                f"cannot write in place to a tensor of shape {self.shape}: several of its elements "
                "lie in one place, as after expand(), or its memory is read-only; write to a "
                "clone()"
            )

    def to_write(self, value: Any) -> Any:
        """Returns `value` as an array or a number that can be written in place; raises RuntimeError
        if this tensor or the value needs a gradient, because writes are not recorded."""
        if self.loses_gradient(value):
            raise RuntimeError(
                f"cannot write in place to a tensor of shape {self.shape}: the tensor or the value "
                "requires a gradient, which would become wrong; make a new tensor, or write under "
                "nnmpi.no_grad()"
            )
        return self.converted(value)

    def converted(self, value: Any) -> Any:
        """Returns `value` as by `to_write`, where no gradient can be lost."""
        self.storage.of_all_writes.check_write()
        written = constant(value, (self,))
        if written.__class__ is int:
            written = fitting(written, self.dtype)
        self.drop_data_for(written)
        return written

    def drop_data_for(self, written: Any) -> None:
        """Replaces the tensor's array by one without data if its new value, `written`, has none."""
        if type(written) is np.ndarray or not is_meta(written) or is_meta(self._array):
            return
        if self.storage.sharing is not None:
            refuse("writing to memory that tensors share")
        self._array = copy_of(self._array)

    def loses_gradient(self, value: Any) -> bool:
        """True if ops are recorded and this tensor or the value requires a gradient."""
        self.renew()
        needs = self._requires_grad
        if isinstance(value, Tensor):
            value.renew()
            needs = needs or value._requires_grad
        return needs and bool(_recorder())

    def mark_written(self) -> None:
        """Records an in-place write: backward through ops that keep old values raises."""
        storage = self.storage
        storage.mark_written()
        sharing = storage.sharing or storage.sharing_record()
        sharing.block, sharing.time = ref(owner(self._array)), storage.of_all_writes.written

    __iadd__ = in_place(elementwise.add, iadd)
    __isub__ = in_place(elementwise.subtract, isub)
    __imul__ = in_place(elementwise.multiply, imul)
    __itruediv__ = in_place(elementwise.divide, itruediv)
    __ifloordiv__ = in_place(elementwise.floor_divide)
    __imod__ = in_place(elementwise.remainder)
    __ipow__ = in_place(elementwise.power)
    __iand__, __ior__ = in_place(logic.bitwise_and), in_place(logic.bitwise_or)
    __ixor__ = in_place(logic.bitwise_xor)
    __ilshift__, __irshift__ = in_place(logic.left_shift), in_place(logic.right_shift)

    # ---- arithmetic

    __add__, __radd__ = both_operators(elementwise.add)
    __sub__, __rsub__ = both_operators(elementwise.subtract)
    __mul__, __rmul__ = both_operators(elementwise.multiply)
    __truediv__, __rtruediv__ = both_operators(elementwise.divide)
    __floordiv__, __rfloordiv__ = both_operators(elementwise.floor_divide)
    __mod__, __rmod__ = both_operators(elementwise.remainder)
    __pow__, __rpow__ = both_operators(elementwise.power)
    __matmul__, __rmatmul__ = both_operators(linear.matmul)
    __neg__: Callable[..., Tensor] = method_of(elementwise.negative)
    __abs__: Callable[..., Tensor] = method_of(elementwise.absolute)

    # ---- comparisons, and logic on masks: without gradients

    __eq__ = operator_of(logic.equal)  # type: ignore[assignment]
    __ne__ = operator_of(logic.not_equal)  # type: ignore[assignment]
    __lt__ = operator_of(logic.less)
    __le__ = operator_of(logic.less_equal)
    __gt__ = operator_of(logic.greater)
    __ge__ = operator_of(logic.greater_equal)
    __and__, __rand__ = both_operators(logic.bitwise_and)
    __or__, __ror__ = both_operators(logic.bitwise_or)
    __xor__, __rxor__ = both_operators(logic.bitwise_xor)
    __lshift__, __rlshift__ = both_operators(logic.left_shift)
    __rshift__, __rrshift__ = both_operators(logic.right_shift)
    __invert__: Callable[..., Tensor] = method_of(logic.invert)
    __hash__ = object.__hash__

    # ---- the methods of an ndarray

    def __getitem__(self, index: Any) -> Tensor:
        t, places = self, index_of(index, self)
        if type(places) is tuple:
            first, places = shape.split_index(places, self.ndim)
            t = self if first is None else apply(shape.getitem, self, index=first)
        y = apply(shape.getitem, t, index=places)
        is_copy = y.viewed is None and shape.selects_by_numbers(places)
        if is_copy and (note := memory_row("note_copy")):
            note(self, y, True)
        return y

    sum: Callable[..., Tensor] = summing(reduce.sum)
    mean: Callable[..., Tensor] = summing(reduce.mean)
    var: Callable[..., Tensor] = spread(reduce.var)
    std: Callable[..., Tensor] = spread(reduce.std)
    max: Callable[..., Any] = extreme(reduce.max, logic.argmax, elementwise.maximum)
    min: Callable[..., Any] = extreme(reduce.min, logic.argmin, elementwise.minimum)
    prod: Callable[..., Tensor] = summing(reduce.prod)
    any: Callable[..., Tensor] = reduction(logic.any, axis_of)  # dim=() reduces no axis
    all: Callable[..., Tensor] = reduction(logic.all, axis_of)
    argmax: Callable[..., Tensor] = reduction(logic.argmax)

    def astype(self, dtype: Any) -> Tensor:
        """The values in another dtype; gradients flow between floating-point types."""
        if not is_float(np.dtype(dtype)):
            return Tensor(self.array.astype(dtype))
        return apply(elementwise.astype, self, dtype=dtype)


def array_on(on: backend.Backend, value: Any, dtype: Any = None) -> Array:
    """An array, a number or nested lists of numbers as an array on the backend `on`."""
    array = value if backend.is_array(value) else np.asarray(value)
    if array.dtype.kind not in "biuf" and not is_float(array.dtype):
        raise TypeError(f"a tensor holds real numbers, not {type(value).__name__}")
    return on.asarray(array, dtype)


def as_tensor(value: Any, on: backend.Backend | None = None) -> Tensor:
    """The value itself if it is a tensor, else a constant tensor, without a copy of an array.
    Without `on`, an array stays on its backend, and numbers and lists go to the CPU."""
    if isinstance(value, Tensor):
        return value
    if on is None:
        on = backend.of(value) if backend.is_array(value) else backend.CPU
    return Tensor(array_on(on, value))


def array_of(value: Any) -> Array:
    """The array behind a tensor, an array of any backend, or nested lists of numbers."""
    value = value.array if isinstance(value, Tensor) else value
    return value if backend.is_array(value) else np.asarray(value)


def on_host(value: Any) -> np.ndarray:
    """A tensor, an array of any backend or nested lists of numbers as a NumPy array."""
    return value if type(value) is np.ndarray else backend.to_host(array_of(value))


def constant(value: Any, others: Sequence[Any]) -> Any:
    """An op's argument without a gradient, as an array on the backend of the tensors in `others`,
    or as a Python number, which does not promote the dtype of arrays."""
    if isinstance(value, Tensor):
        return value.array
    if isinstance(value, np.generic):  # checked before float, because np.float64 is a float
        return value.item()
    if isinstance(value, (int, float)):
        return value
    for t in others:
        if isinstance(t, Tensor):
            like = t._array
            if type(value) is not type(like):
                return array_on(backend.of(like), value)
            return value if value.ndim or not is_meta(value) else as_constant(value, others)
    raise TypeError(
        f"an op needs at least one tensor, got only constants such as this "
        f"{type(value).__name__}: make one with nnmpi.tensor(x)"
    )


def index_of(index: Any, t: Tensor) -> Any:
    """An index of t with each tensor in it replaced by its array, and each 0-d array of integers by
    its number, so that t[index] is a view, as in PyTorch.

    While a pass is recorded, 0-d arrays stay, since their numbers differ from pass to pass.
    """
    if type(index) is int or type(index) is slice or index is Ellipsis:  # most of them
        return index
    if isinstance(index, tuple):
        return tuple([index_of(k, t) for k in index])
    if isinstance(index, Tensor):
        index = index.array
    elif not backend.is_array(index):
        return index
    if index.dtype.char == "B":
        raise TypeError(
            f"an index of shape {index.shape} is uint8, which PyTorch takes for a mask and NumPy "
            "for positions: write x[i.bool()] or x[i.long()]"
        )
    if index.ndim:
        return index
    is_number = index.dtype.kind in "iu"
    if is_number and isinstance(recording.get(), bool) and not is_meta(t._array, index):
        return int(index)
    return index
