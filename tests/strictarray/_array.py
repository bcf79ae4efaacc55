"""The array of the stand-in: a NumPy array that only its own module may touch.

It wraps instead of inheriting, so that an attribute that is not defined here
does not exist.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from strictarray._counting import launched, note
from strictarray._indexing import Index
from strictarray._values import Held, is_scalar, operand, raw
from strictarray.cuda import Stream, kernels


class Flags(NamedTuple):
    c_contiguous: bool
    f_contiguous: bool
    owndata: bool


class Pointer(NamedTuple):
    ptr: int


class ndarray(Held):  # noqa: N801 (CuPy's name)
    """An array as CuPy would show it; `_a` is the NumPy array behind it.

    Methods that equal a function of the module (`sum`, `take`, ...) are added to
    this class in `_functions.py`.
    """

    __slots__ = ()
    __array_priority__ = 100
    __array_ufunc__ = None  # NumPy's arrays and scalars then leave operators to this class
    __hash__ = None  # type: ignore[assignment]

    # Known to the host without a wait.
    dtype = property(lambda self: self._a.dtype)
    shape = property(lambda self: self._a.shape)
    strides = property(lambda self: self._a.strides)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    itemsize = property(lambda self: self._a.itemsize)
    nbytes = property(lambda self: self._a.nbytes)

    @property
    def flags(self) -> Flags:
        flags = self._a.flags
        return Flags(flags.c_contiguous, flags.f_contiguous, flags.owndata)

    @property
    def data(self) -> Pointer:
        return Pointer(self._a.ctypes.data)

    def __len__(self) -> int:
        return len(self._a)

    # Views and copies.
    T = property(lambda self: ndarray(self._a.T))
    real = property(lambda self: ndarray(self._a.real))

    def ravel(self, order: str = "C") -> "ndarray":
        return call(np.ravel, self, order)

    def flatten(self, order: str = "C") -> "ndarray":
        return self.copy(order).ravel(order)

    def view(self, dtype: Any = None) -> "ndarray":
        return ndarray(self._a.view() if dtype is None else self._a.view(dtype))

    def copy(self, order: str = "C") -> "ndarray":
        return call(np.copy, self, order)

    def astype(self, dtype: Any, *, order: str = "K", copy: bool = True) -> "ndarray":
        with np.errstate(all="ignore"):
            found = wrap(self._a.astype(dtype, order=order, copy=copy), [self])
        if found is not self:
            launched("copy" if found.dtype == self.dtype else "conversion", "astype")
        return found

    def __copy__(self) -> "ndarray":
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> "ndarray":
        return self.copy()

    # Changes in place.
    def fill(self, value: Any) -> None:
        kernels.count += 1
        launched("kernel", "fill")
        self._a.fill(operand(value))

    def sort(self, axis: int = -1) -> None:
        launched("kernel", "sort")
        self._a.sort(axis)

    def set(self, host: np.ndarray, stream: Stream | None = None) -> None:
        """Copy a NumPy array of the same shape and type to the device, now or on a stream."""
        launched("transfer", "set")
        if type(host) is not np.ndarray or (host.dtype, host.shape) != (self.dtype, self.shape):
            raise ValueError(f"set() takes a NumPy array of shape {self.shape} and {self.dtype}")
        if stream is None:
            self._a[...] = host
        else:
            stream.put(host, _contiguous(self._a))

    # From the device to the host: each of these waits, as do those in _WAITS below.
    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        """The values on the host; without `blocking` they are there later (see cuda/)."""
        if blocking:
            note("get")
        if out is None:
            return self._a.copy(order)
        if type(out) is not np.ndarray or (out.dtype, out.shape) != (self.dtype, self.shape):
            raise TypeError(f"out of get() is a NumPy array of shape {self.shape} and {self.dtype}")
        if blocking:
            out[...] = self._a
        else:
            stream.fetch(_contiguous(self._a), out)
        return out

    def __format__(self, spec: str) -> str:
        note("format")
        return format(self._a if self.ndim else self._a[()], spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return from_host, (self.get(),)

    def __iter__(self) -> Iterator["ndarray"]:
        """The entries along the first axis; one by one over elements, it counts as a wait.

        CuPy makes a view of each element and waits for none. But a loop over
        elements is a loop on the host, and what follows in it is a wait.
        """
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        if self.ndim == 1:
            note("iteration")
        return (self[i] for i in range(len(self)))

    # Indexing.
    def __getitem__(self, key: Any) -> "ndarray":
        """A view for integers and slices, a fresh array for index arrays and masks."""
        where = Index.of(key)
        if where.masked:
            note("masked selection")
        found = self._a[where.key]
        if where.gathers:
            launched("kernel", "gather")
        return ndarray(found.copy("K") if where.gathers else found)

    def __setitem__(self, key: Any, value: Any) -> None:
        """`value` is an array or a scalar; CuPy takes no list in the place of a slice.

        A masked assignment waits in CuPy too: it counts the mask on the host.
        `copyto(x, value, where=mask)` and `where(mask, value, x)` do not.
        """
        where, host = Index.of(key), operand(value)
        kernels.count += 1
        if where.masked:
            note("masked assignment")
        launched("kernel" if where.gathers or not isinstance(value, ndarray) else "copy", "set")
        if isinstance(value, ndarray):
            where.refuse_undefined(self._a, value._a)
        with np.errstate(all="ignore"):
            self._a[where.key] = host

    # Conversions that are refused.
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed; use .get()")

    def __array_function__(self, function: Callable[..., Any], *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was given a device array; call it on xp")


def _contiguous(array: np.ndarray) -> np.ndarray:
    """The array; raises RuntimeError for one that CuPy would copy first, on another stream."""
    if not array.flags.c_contiguous:
        raise RuntimeError("a copy on a stream takes contiguous arrays only")
    return array


def wrap(result: Any, given: list[ndarray]) -> Any:
    """NumPy's result in this module's types; an array that was given is returned as itself."""
    if isinstance(result, np.ndarray):
        for array in given:
            if array._a is result:
                return array
        return ndarray(result)
    if isinstance(result, (np.generic, bool, int)):
        return ndarray(np.asarray(result))
    if isinstance(result, (list, tuple)):
        return type(result)(wrap(entry, given) for entry in result)
    return result


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`function` of NumPy on unwrapped arguments, its result wrapped, and no warnings.

    CuPy never warns of a division by zero or an overflow, and has no errstate
    to silence it: code that runs there must not need one here.
    """
    kernels.count += 1
    given = [value for value in (*args, *options.values()) if isinstance(value, ndarray)]
    with np.errstate(all="ignore"):
        result = function(*map(raw, args), **{name: raw(v) for name, v in options.items()})
    found = wrap(result, given)
    _note_work(function.__name__, found, given, options.get("out"))
    return found


COPIES = frozenset({"ascontiguousarray", "asfortranarray", "copy", "ravel", "reshape"})
PRODUCTS = frozenset({"dot", "matmul"})


def _note_work(name: str, found: Any, given: list[ndarray], out: Any) -> None:
    """Records what CuPy launches for a function, whose result may be a view."""
    if isinstance(found, list | tuple) or name in ("empty", "empty_like", "broadcast_to"):
        return
    if name in PRODUCTS:
        _note_conversions(name, found, [a for a in given if a is not out])
    is_new = out is not None or not isinstance(found, ndarray) or not found.size
    if is_new or not any(found is a or np.may_share_memory(found._a, a._a) for a in given):
        launched("copy" if name in COPIES else "kernel", name)


def _note_conversions(name: str, found: ndarray, factors: list[ndarray]) -> None:
    """What a product does with its factors first: one type, no gaps, float32 for batches."""
    for a in factors:
        is_batch = a.ndim > 2 and a.dtype.name in ("float16", "bfloat16")
        if is_batch or a.dtype != found.dtype:
            launched("conversion", name)
        elif not _has_order(a._a):
            launched("copy", name)
    if found.ndim > 2 and found.dtype.name in ("float16", "bfloat16"):
        launched("conversion", name)


def _has_order(a: np.ndarray) -> bool:
    """Whether cuBLAS reads matrices as they are: rows or columns lie beside each other."""
    *_, rows, columns = (1, 1, *a.shape)
    *_, by_row, by_column = (0, 0, *(s // a.itemsize for s in a.strides))
    return (
        min(rows, columns) <= 1
        or (by_column == 1 and by_row >= columns)
        or (by_row == 1 and by_column >= rows)
    )


def elementwise(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`call` of what is elementwise, in C order where NumPy keeps that of the arguments.

    CuPy's ufuncs make their results in C order (`_get_out_args_from_optionals` of _kernel.pyx).
    """
    result = call(function, *args, **options)
    if options.get("out") is None and isinstance(result, ndarray):
        result._a = np.ascontiguousarray(result._a).reshape(result.shape)
    return result


def from_host(host: np.ndarray) -> ndarray:
    """A device array with a copy of these values."""
    return ndarray(np.array(host))


def _gives_way_to(other: object) -> bool:
    """Whether an operator leaves the work to the other side: CuPy's rule for foreign types."""
    if isinstance(other, ndarray) or is_scalar(other):
        return False
    missing = object()
    ufunc = getattr(other, "__array_ufunc__", missing)
    if ufunc is missing:
        return getattr(other, "__array_priority__", 0) > ndarray.__array_priority__
    return ufunc is None


def _forward(function: Callable[..., Any]) -> Callable[[ndarray, Any], Any]:
    made = elementwise if isinstance(function, np.ufunc) else call

    def method(self: ndarray, other: Any) -> Any:
        return NotImplemented if _gives_way_to(other) else made(function, self, allowed(other))

    return method


def _reflected(function: Callable[..., Any]) -> Callable[[ndarray, Any], Any]:
    made = elementwise if isinstance(function, np.ufunc) else call

    def method(self: ndarray, other: Any) -> Any:
        return NotImplemented if _gives_way_to(other) else made(function, allowed(other), self)

    return method


def _in_place(function: Callable[..., Any]) -> Callable[[ndarray, Any], Any]:
    def method(self: ndarray, other: Any) -> ndarray:
        call(function, self, allowed(other), out=self)
        return self

    return method


def _unary(function: Callable[..., Any]) -> Callable[[ndarray], Any]:
    return lambda self: elementwise(function, self)


def allowed(value: Any) -> Any:
    """`value` itself, if it is an array or a scalar."""
    operand(value)
    return value


def _waits(name: str, function: Callable[[np.ndarray], Any]) -> Callable[[ndarray], Any]:
    def method(self: ndarray) -> Any:
        note(name.strip("_"))
        return function(self._a)

    return method


_WAITS: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
    "__repr__": repr,
    "__str__": str,
    "item": np.ndarray.item,
    "tolist": np.ndarray.tolist,
    "tobytes": np.ndarray.tobytes,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}


def matmul(a: Any, b: Any, **named: Any) -> Any:
    """The product in the type of the factors: NumPy's of bfloat16 is float32, CuPy's is not."""
    return np.matmul(a, b, **named).astype(np.result_type(a, b), copy=False)


_ONE_WAY: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "matmul": matmul,
    "rmatmul": lambda a, b: matmul(b, a),
}
_UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}

for _name, _function in _WAITS.items():
    setattr(ndarray, _name, _waits(_name, _function))
for _name, _function in _BINARY.items():
    setattr(ndarray, f"__{_name}__", _forward(_function))
    setattr(ndarray, f"__r{_name}__", _reflected(_function))
    setattr(ndarray, f"__i{_name}__", _in_place(_function))
for _name, _function in _ONE_WAY.items():
    setattr(ndarray, f"__{_name}__", _forward(_function))
for _name, _function in _UNARY.items():
    setattr(ndarray, f"__{_name}__", _unary(_function))
