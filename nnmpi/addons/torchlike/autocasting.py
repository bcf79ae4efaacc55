"""PyTorch's `autocast`: products in 16 bits, from parameters and inputs in float32.

    in 16 bits  ops whose float32 arguments are converted
    in float32  ops whose 16-bit arguments are converted
    all other   ops compute in the types of their arguments, of which the wider one wins; so do ops
                of both kinds that have an argument in float64

RULES says which ops are of which kind, as in PyTorch; on a GPU more ops are in float32, as float16
is its default. A conversion is an op, so gradients of parameters are float32. The copy of a leaf,
such as a parameter, is kept until the context ends or the leaf is written, but each use of it gets
a node of its own: several backward passes may go through it.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from functools import cache, partial
from threading import get_ident
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.addons import Table
from nnmpi.addons.torchlike.ops import distance, einsum
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import is_float, is_half, named
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import cast, cast_loop
from nnmpi.autograd.ops import (
    activations,
    conv,
    elementwise,
    linear,
    norm,
    reduce,
    resample,
    softmax,
)
from nnmpi.autograd.recording import OpTypes, op_types, recording
from nnmpi.autograd.tensor import Tensor, apply
from nnmpi.options.notes import note

DEFAULTS = {"cpu": "bfloat16", "cuda": "float16"}
"""The type of products on each type of device, unless another one is given."""

Rule = Callable[[Sequence[Any], Mapping[str, Any]], bool | None]
"""Returns, given the arguments and options of an op, whether it computes in 16 bits (True) or in
float32 (False); None: in the types of its arguments."""


def _contracts(args: Sequence[Any], options: Mapping[str, Any]) -> bool | None:
    """True if a call of einsum adds up products of several tensors: autocast casts only these."""
    terms, _, output = options["equation"].replace(" ", "").partition("->")
    letters = [c for term in terms.split(",") for c in {*term} - {"."}]
    return any(letters.count(c) > 1 and c not in output for c in {*letters}) or None


def _pads_by_copies(args: Sequence[Any], options: Mapping[str, Any]) -> bool | None:
    return False if options.get("mode") in ("reflect", "replicate") else None


def _wide_on_gpu(args: Sequence[Any], options: Mapping[str, Any]) -> bool | None:
    """Returns False if the first argument is on a GPU: the rule of ops cast to float32 only
    there."""
    return None if backend.of(_array_of(args[0])).is_host else False


def is_product(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Returns True: the rule of products, which always compute in 16 bits."""
    return True


RULES: dict[str, dict[str, Rule]] = {
    linear.__name__: dict.fromkeys(("linear", "matmul", "mlp"), is_product),
    conv.__name__: dict.fromkeys(
        ("after_padding", "conv1d", "conv2d", "conv_transpose2d"), is_product
    ),
    einsum.__name__: {"einsum": _contracts},
    activations.__name__: {"prelu": is_product, "softplus": _wide_on_gpu},
    reduce.__name__: {
        "cumsum": _wide_on_gpu,
        "prod": lambda args, options: False,
        "sum": _wide_on_gpu,
    },
    resample.__name__: {"pad": _pads_by_copies, "upsample2d": _wide_on_gpu},
    softmax.__name__: dict.fromkeys(("log_softmax", "softmax"), _wide_on_gpu),
    norm.__name__: dict.fromkeys(("group_norm", "layer_norm", "rms_norm"), _wide_on_gpu),
    elementwise.__name__: dict.fromkeys(("exp", "log", "power"), _wide_on_gpu),
    distance.__name__: {"p_norm": _wide_on_gpu},
}
"""The types of ops, by the module that defines them, then by name. Functions of several ops, such
as losses, call `functional.wide`."""

MORE_RULES: Table[Rule] = Table("op_types")
"""By "module:op": the type of an op of an add-on, or of a layer that ranks divide."""


@cache
def _rule(module: str, op: str) -> Rule | None:
    return RULES.get(module, {}).get(op) or MORE_RULES.row(f"{module}:{op}")


class _Copy(NamedTuple):
    """A 16-bit copy (`values`) of a leaf, such as a parameter, which is used as long as the leaf
    has the array `array`, whose last write before the copy was the number `written`."""

    leaf: Tensor
    array: Array
    written: int
    values: Array


class Casts(OpTypes):
    """The types in which ops compute within `autocast`.

    dtypes   the 16-bit type of products (matrix products, convolutions) for each type of device
    kept     16-bit copies of leaves, by id and type, for later uses; None: no copies are kept
    """

    def __init__(
        self, dtypes: Mapping[str, Any], kept: dict[tuple[int, Any], _Copy] | None
    ) -> None:
        self.dtypes, self.kept = dtypes, kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Casts) and other.dtypes == self.dtypes

    def __hash__(self) -> int:
        return hash(frozenset(self.dtypes.items()))

    def afresh(self) -> "Casts":
        """Returns a Casts with the same types, without 16-bit copies of parameters."""
        return Casts(self.dtypes, None if self.kept is None else {})

    def arguments(
        self, op: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Returns the arguments of an op, converted to the types in which it is to compute."""
        op = op.func if isinstance(op, partial) else op
        rule = _rule(op.__module__, op.__name__)
        in_16_bits = rule(args, options) if rule else None
        if in_16_bits is None or any(_dtype_of(a) == np.float64 for a in args):
            return args
        return (*map(self._narrow if in_16_bits else self.wide, args),)

    def wide(self, t: Any) -> Any:
        """Returns a 16-bit argument in float32, and any other unchanged."""
        dtype = self._product_type(t)
        return t if dtype is None or not is_half(_array_of(t).dtype) else _converted(t, np.float32)

    def _narrow(self, t: Any) -> Any:
        """Converts an argument of a product to 16 bits, unless autocast never converts it."""
        dtype = self._product_type(t)
        if dtype is None or _array_of(t).dtype == dtype:
            return t
        is_leaf = isinstance(t, Tensor) and t.node is None and t.requires_grad
        if self.kept is None or not is_leaf:
            return _converted(t, dtype)
        copy, key = self.kept.get((id(t), dtype)), (id(t), dtype)
        if copy is not None and copy.array is t._array and copy.written == t.storage.written:
            return _converted(t, dtype, copy.values)
        y = _converted(t, dtype)
        self.kept[key] = _Copy(t, t._array, t.storage.written, y._array)
        return y

    def _product_type(self, t: Any) -> Any:
        """The type of products on an argument's device; None if it is never converted."""
        dtype = _dtype_of(t)
        if dtype is None or not is_float(dtype) or dtype == np.float64:
            return None
        return self.dtypes.get(backend.of(_array_of(t)).type)


def _dtype_of(t: Any) -> Any:
    """Returns the type of a tensor or array; None for any other argument of an op."""
    array = _array_of(t)
    return array.dtype if backend.is_array(array) else None


def _array_of(t: Any) -> Any:
    return t._array if isinstance(t, Tensor) else t


def _converted(t: Any, dtype: Any, values: Array | None = None) -> Any:
    """Returns an argument of an op in another type; `values` are its values there, if known."""
    if not isinstance(t, Tensor):
        return cast(t, dtype)
    return apply(convert, t, dtype=dtype, values=values)


def convert(a: Array, *, dtype: Any, values: Array | None = None) -> Result:
    """Converts an array to the floating-point type `dtype`; the gradient is converted back.
    `values`, if given, are the converted values, which were computed before."""
    old_dtype = a.dtype

    def vjp(g: Any, out: Array | None) -> Array:
        if not backend.is_array(g):  # a TableGradient
            return g.astype(old_dtype)
        if out is None:
            return cast(g, old_dtype)
        cast_loop(g, out)
        return out

    return Result(cast(a, dtype) if values is None else values, (vjp,))


# ---- the context


class autocast(ContextDecorator):  # noqa: N801 - PyTorch's name
    """A context or decorator for the forward pass and the loss, in which products (linear layers,
    convolutions, attention, `a @ b`) compute in 16 bits from float32 parameters, and losses in
    float32; gradients of parameters are float32.

    device_type: "cpu" or "cuda"; it applies to tensors on this type of device
    dtype: "bfloat16" or "float16"; by default bfloat16 on a CPU, float16 on a GPU
    enabled: False lets ops compute in the types of their arguments, within another autocast too
    cache_enabled: whether a parameter that is used again is converted only once
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type not in DEFAULTS:
            raise ValueError(f"autocast: device type {device_type!r} must be 'cpu' or 'cuda'")
        self.device, self._keeps = device_type, cache_enabled is not False
        self.fast_dtype = _given_type(device_type, dtype) if enabled else None
        self._enabled = self.fast_dtype is not None
        # by thread, since ranks that are threads may share one object
        self._outer = defaultdict[int, list[OpTypes | None]](list)

    def __enter__(self) -> Self:
        outer, record = op_types.get(), recording.get()
        inner = self._within(outer)
        if inner != outer and not isinstance(record, bool):
            record.enter("autocast")
        self._outer[get_ident()].append(outer)
        op_types.set(inner)
        return self

    def __exit__(self, *exc: object) -> None:
        op_types.set(self._outer[get_ident()].pop())

    def _recreate_cm(self) -> Self:
        """Returns a new context manager for each decorated call: threads may call it."""
        new = type(self).__new__(type(self))
        vars(new).update(vars(self), _outer=defaultdict(list))
        return new

    def _within(self, outer: OpTypes | None) -> Casts | None:
        """Returns the types here: on its device this context's, elsewhere the enclosing one's."""
        dtypes, kept = dict[str, Any](), dict[tuple[int, Any], _Copy]()
        if isinstance(outer, Casts):
            dtypes, kept = {**outer.dtypes}, kept if outer.kept is None else outer.kept
        dtypes.pop(self.device, None)
        if self._enabled:
            dtypes[self.device] = self.fast_dtype
        return Casts(dtypes, kept if self._keeps else None) if dtypes else None


def _given_type(device_type: str, dtype: Any) -> Any:
    """The 16-bit dtype of products in `autocast`: `dtype` or the device's default. None, with a
    note, if autocast changes nothing: without a GPU, or if `dtype` has not 16 bits."""
    if device_type == "cuda" and backend.get("auto").is_host:
        note(
            'autocast("cuda") changes nothing on this machine, which has no GPU; autocast("cpu") '
            "computes in bfloat16"
        )
        return None
    if dtype is None:
        return get_autocast_dtype(device_type)
    kind = named(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if not is_half(kind):
        note(f"autocast in {kind} changes nothing: its types are bfloat16 and float16")
        return None
    return kind


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """True within an `autocast` for this type of device."""
    types = op_types.get()
    return isinstance(types, Casts) and device_type in types.dtypes


def is_autocast_available(device_type: str) -> bool:
    """True for "cpu" and "cuda"."""
    return device_type in DEFAULTS


def get_autocast_dtype(device_type: str) -> Any:
    """The type of products within `autocast` for this type of device, or else its default type."""
    types = op_types.get()
    inside = types.dtypes.get(device_type) if isinstance(types, Casts) else None
    return named(DEFAULTS[device_type]) if inside is None else inside
