"""The functions of the stand-in: what CuPy 14 has, as far as NumPy and CuPy agree on it.

Every function is NumPy's behind a check of its arguments, which reads a
signature. A letter in it stands for what is allowed there:

    A  an array            V  an array or a scalar
    S  a list of arrays    I  an array of integers, an integer or a list of them
    *A any number of arrays
    lower case             an option of the host (an axis, a shape), never an array
                           but for those named in ARRAY_OPTIONS; with ! it must be given

What stands behind the bar goes by keyword only, because the two libraries put
it in different places. `tests/strict` compares the names with those of
CuPy itself where it is installed.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from strictarray._array import allowed, call, elementwise, matmul, ndarray, wrap
from strictarray._counting import launched, note
from strictarray._indexing import Index
from strictarray._values import is_scalar, operand, raw, refusal, words

ARRAY_OPTIONS = frozenset({"out", "where", "weights"})

SIGNATURES = {
    "shape dtype order": "empty zeros ones",
    "shape V dtype order": "full",
    "n m k | dtype": "eye tri",
    "n | dtype": "identity",
    "start stop step | dtype": "arange",
    "start stop num endpoint | dtype axis": "linspace",
    "dimensions dtype": "indices",
    "A dtype order | shape": "empty_like zeros_like ones_like",
    "A V dtype order | shape": "full_like",
    "A": "argwhere flatnonzero matrix_transpose nonzero",
    "*A": "atleast_1d atleast_2d broadcast_arrays",
    "*A | indexing sparse": "meshgrid",
    "A dtype": "ascontiguousarray asfortranarray",
    "A order": "copy ravel",
    "A dims | order": "reshape",
    "A dims": "broadcast_to",
    "A axes": "permute_dims transpose",
    "A source destination": "moveaxis",
    "A axis1 axis2": "swapaxes",
    "A axis": "count_nonzero expand_dims flip squeeze",
    "A k": "diag tril triu",
    "A k axes": "rot90",
    "A offset axis1 axis2": "diagonal",
    "A offset axis1 axis2 dtype out": "trace",
    "A n axis": "diff",
    "A shift axis": "roll",
    "A reps": "tile",
    "A repeats axis": "repeat",
    "A sections axis": "array_split split",
    "A pad_width mode | constant_values": "pad",
    "S axis out | dtype casting": "concat concatenate stack",
    "S | dtype casting": "hstack vstack",
    "A I axis out": "take",
    "A A axis!": "take_along_axis",
    "A A V axis!": "put_along_axis",
    "A A V": "putmask",
    "A V | casting where": "copyto",
    "A V V | out": "clip",
    "A V": "isin",
    "A A | side": "searchsorted",
    "A axis dtype out keepdims": "mean nanmean nansum prod sum",
    "A axis dtype out ddof keepdims": "std var",
    "A axis out keepdims": "all amax amin any max min nanmax nanmin ptp",
    "A axis | out keepdims": "argmax argmin",
    "A axis kind": "argsort sort",
    "A kth axis": "argpartition partition",
    "A axis dtype out": "cumprod cumsum",
    "A decimals out": "round",
    "A copy nan posinf neginf": "nan_to_num",
    "A | weights minlength": "bincount",
    "A return_index return_inverse return_counts axis": "unique",
    "V V rtol atol equal_nan": "allclose isclose",
    "A A equal_nan": "array_equal",
    "A A": "inner kron vdot",
    "A A out": "dot outer",
    "A A axes": "tensordot",
    "A A | out dtype casting": "matmul",
    "subscripts *A | dtype optimize": "einsum",
}

UFUNCS = words("""
    abs absolute add arctan arctan2 arctanh bitwise_and bitwise_count bitwise_not bitwise_or
    bitwise_xor cbrt ceil conj conjugate copysign cos cosh divide equal exp exp2 expm1 fabs
    float_power floor floor_divide fmax fmin fmod greater greater_equal hypot invert isfinite isinf
    isnan left_shift less less_equal log log10 log1p log2 logaddexp logical_and logical_not
    logical_or logical_xor maximum minimum mod multiply negative nextafter not_equal positive power
    reciprocal remainder right_shift rint sign signbit sin sinh sqrt square subtract tan tanh
    true_divide trunc
""")

ELEMENTWISE = frozenset(words("clip isclose nan_to_num round"))
"""Functions that CuPy makes of ufuncs."""

NO_BFLOAT16 = frozenset(words("argmax argmin argpartition argsort partition sort"))
"""Functions without it, beside ufuncs."""

NO_BFLOAT16_LOOP = frozenset(words("float_power logical_not logical_xor"))
"""Ufuncs of floats without it in `types` of CuPy 14.2."""

WAITING = frozenset(words("argwhere bincount flatnonzero nonzero unique"))

METHODS = words("""
    all any argmax argmin argsort cumprod cumsum diagonal dot max mean min nonzero prod ptp
    repeat round searchsorted squeeze std sum swapaxes take trace var
""")

# What the host answers by itself; the arrays among the arguments give only their shape and type.
_HOST = words(
    "can_cast iscomplexobj isscalar may_share_memory ndim result_type shape shares_memory size"
)

_PASSED_THROUGH = words("""
    bool_ broadcast_shapes complex64 complex128 dtype e finfo float16 float32 float64 floating
    generic iinfo inexact inf int8 int16 int32 int64 integer intp issubdtype nan newaxis number pi
    promote_types signedinteger uint8 uint16 uint32 uint64 unsignedinteger
""")


def array(
    obj: Any, dtype: Any = None, *, copy: bool = True, order: str = "K", ndmin: int = 0
) -> ndarray:
    """A device array of a NumPy array, a scalar, or nested lists of these and of device arrays."""
    given = [obj] if isinstance(obj, ndarray) else []
    fresh = copy or not given  # what comes from the host is copied in any case
    made = np.array(_bare(obj), dtype, copy=True if fresh else None, order=order, ndmin=ndmin)
    found = wrap(made, given)
    if not given:
        launched("transfer", "array")
    elif not np.may_share_memory(made, given[0]._a):
        launched("copy" if found.dtype == given[0].dtype else "conversion", "array")
    return found


def _bare(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_bare(entry) for entry in value]
    return value._a if isinstance(value, ndarray) else value


def asarray(a: Any, dtype: Any = None, order: str = "K") -> ndarray:
    """`array` that gives a device array back as it is where nothing has to change."""
    return array(a, dtype, copy=False, order=order)


def asnumpy(a: Any) -> np.ndarray:
    """The values on the host, which waits for them."""
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def where(condition: Any, *choices: Any) -> Any:
    """`where(condition, x, y)`; with the condition alone, `nonzero`, which waits."""
    _check("A", condition, "condition")
    if not choices:
        note("where")
    return elementwise(np.where, condition, *map(allowed, choices))


def _as_strided(x: ndarray, shape: Any = None, strides: Any = None) -> ndarray:
    _check("shape", [shape, strides], "as_strided")
    return call(np.lib.stride_tricks.as_strided, x, shape, strides)


def _sliding_window_view(x: ndarray, window_shape: Any, axis: Any = None) -> ndarray:
    _check("shape", [window_shape, axis], "sliding_window_view")
    return call(np.lib.stride_tricks.sliding_window_view, x, window_shape, axis)


class Ufunc:
    """An elementwise function: arrays and scalars in, `out` and `dtype`, but no `where`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._ufunc = getattr(np, name)

    def __call__(
        self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind"
    ) -> Any:
        _check("out", out, "out")
        if self.__name__ in NO_BFLOAT16_LOOP:
            for a in args:
                if getattr(a, "dtype", None) == "bfloat16":
                    raise TypeError(f"cupy.{self.__name__} has no bfloat16")
        to = {} if out is None else {"out": out}
        return elementwise(self._ufunc, *map(allowed, args), **to, dtype=dtype, casting=casting)


class Add(Ufunc):
    """Addition, the one ufunc with an `at` here: the sum over indices that occur twice."""

    def at(self, a: ndarray, indices: Any, b: Any) -> None:
        """`a[indices] += b`, once for every time an index occurs; CuPy lacks int64 in it."""
        where = Index.of(indices)
        if a.dtype.name not in ("int32", "uint32", "uint64", "float16", "float32", "float64"):
            raise TypeError(f"cupy.add.at has no {a.dtype}")
        if where.masked:
            note("masked add.at")
        launched("kernel", "add.at")
        np.add.at(a._a, where.key, operand(b))


def _check(kind: str, value: Any, name: str) -> None:
    """Raise TypeError if `value` may not stand where the signature says `kind`."""
    if kind == "A":
        fits = isinstance(value, ndarray)
    elif kind == "S":
        fits = isinstance(value, (list, tuple)) and all(isinstance(a, ndarray) for a in value)
    elif kind == "V":
        fits = isinstance(value, ndarray) or is_scalar(value)
    elif kind == "I":
        fits = isinstance(value, (ndarray, int, np.integer, list))
    elif kind in ARRAY_OPTIONS:
        fits = value is None or isinstance(value, ndarray)
    else:
        fits = not _holds_array(value)
    if not fits:
        raise TypeError(f"{name}: {refusal(value)}")


def _holds_array(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_array, value))
    return isinstance(value, (ndarray, np.ndarray))


def _function(name: str, signature: str) -> Callable[..., Any]:
    """NumPy's function of this name behind the checks of `signature`."""
    plain = matmul if name == "matmul" else getattr(np, name)
    kinds, rest, options = parse(signature)

    def function(*args: Any, **named: Any) -> Any:
        extra = len(args) - len(kinds)
        if unknown := named.keys() - {option.removesuffix("!") for option in options}:
            raise TypeError(f"{', '.join(unknown)}: no option of {name}() in CuPy and NumPy alike")
        if extra > 0 and not rest:
            raise TypeError(f"{name}() takes {len(kinds)} arguments by position: {signature}")
        for kind in kinds[len(args) :]:
            if kind.isupper() or (kind.endswith("!") and kind.removesuffix("!") not in named):
                raise TypeError(f"{name}() lacks an argument: {signature}")
        for kind, value in (*zip([*kinds, *rest * extra], args, strict=False), *named.items()):
            _check(kind, value, name)
        if name in WAITING:
            note(name)
        _refuse_bfloat16(name, args)
        made = elementwise if name in ELEMENTWISE else call
        return made(plain, *args, **named)

    function.__name__ = name
    return function


def _refuse_bfloat16(name: str, args: tuple[Any, ...]) -> None:
    """Raises TypeError where CuPy 14.2 has no loop, or no product, for bfloat16."""
    axes = [a.ndim for a in args if isinstance(a, ndarray) and a.dtype.name == "bfloat16"]
    if axes and (name in NO_BFLOAT16 or (name == "matmul" and max(axes) > 2)):
        raise TypeError(f"cupy.{name} has no bfloat16 of {max(axes)} axes")


def parse(signature: str) -> tuple[list[str], list[str], list[str]]:
    """The arguments by position, the one that repeats (none or one), and the names of options."""
    front, _, behind = signature.partition("|")
    kinds = [kind for kind in front.split() if not kind.startswith("*")]
    rest = [kind.removeprefix("*") for kind in front.split() if kind.startswith("*")]
    return kinds, rest, [kind for kind in (*kinds, *behind.split()) if kind.islower()]


def _poisoned(function: Callable[..., ndarray]) -> Callable[..., ndarray]:
    """`empty` filled with NaN, or the largest integer, so that it is not zero by chance."""

    def filled(*args: Any, **named: Any) -> ndarray:
        a = function(*args, **named)
        a._a.fill(np.iinfo(a.dtype).max if a.dtype.kind in "iu" else np.nan)
        return a

    return filled


def _on_host(name: str) -> Callable[..., Any]:
    plain = getattr(np, name)
    return lambda *args, **named: plain(*map(raw, args), **named)


def _clip(self: ndarray, min: Any = None, max: Any = None, out: Any = None) -> ndarray:
    _check("out", out, "clip")
    bounds = [None if bound is None else allowed(bound) for bound in (min, max)]
    return elementwise(np.clip, self, *bounds, out=out)


def _reshape(self: ndarray, *shape: Any, order: str = "C") -> ndarray:
    return NAMES["reshape"](self, shape[0] if len(shape) == 1 else shape, order=order)


def _transpose(self: ndarray, *axes: Any) -> ndarray:
    return NAMES["transpose"](self, axes[0] if len(axes) == 1 else axes or None)


def _namespace() -> dict[str, Any]:
    """Everything that `strictarray.<name>` finds, in one dict."""
    names: dict[str, Any] = {name: getattr(np, name) for name in _PASSED_THROUGH}
    names |= {name: _on_host(name) for name in _HOST}
    names |= {name: Ufunc(name) for name in UFUNCS} | {"add": Add("add")}
    for signature, group in SIGNATURES.items():
        names |= {name: _function(name, signature) for name in group.split()}
    names |= {name: _poisoned(names[name]) for name in ("empty", "empty_like")}
    names |= {f.__name__: f for f in (array, asarray, asnumpy, where)}
    tricks = SimpleNamespace(as_strided=_as_strided, sliding_window_view=_sliding_window_view)
    names["lib"] = SimpleNamespace(stride_tricks=tricks)
    return names


NAMES = _namespace()

for _name in METHODS:
    setattr(ndarray, _name, NAMES[_name])
for _name, _method in {"clip": _clip, "reshape": _reshape, "transpose": _transpose}.items():
    setattr(ndarray, _name, _method)
