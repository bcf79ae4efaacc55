"""PyTorch's operator database against the functions and methods of this framework.

PyTorch lists its operators with samples of their arguments: empty tensors, numbers, broadcasting,
ties, infinities. Each sample runs in both libraries, in float32, float64 and uint8 (for operators
of masks booleans and int64); values, shapes, types and gradients are compared. The table CALLS
names the counterpart of an operator. A sample whose options its signature does not have counts as
not supported, and so does one whose options or shapes a module refuses. Not covered: operators
without a counterpart, complex numbers, half precision, sparse tensors, gradients of gradients, in-
place variants, and what is random (dropout).
"""

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from compared import (
    Leaves,
    NotSupportedError,
    Report,
    backward,
    bound,
    each,
    forwarded,
    judged,
    made,
    quiet,
    results_differ,
)
from torch.testing._internal.common_methods_invocations import op_db

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn


def joined(tensors, dim=0):
    if len({t.ndim for t in tensors}) > 1:
        raise NotSupportedError("an empty tensor of one axis among others")
    return nnmpi.cat(tensors, dim)


# ---- layers and losses, whose weights are arguments of an operator


def layer(kind: str, *args: Any, weights: dict[str, Any], **options: Any) -> nn.Module:
    """A layer with these weights; None for one that it does not have."""
    module = made(kind, *args, **options)
    for name, value in weights.items():
        if isinstance(value, nnmpi.Tensor) and not isinstance(value, nn.Parameter):
            value = nn.Parameter(value, requires_grad=False)
        if value is not None or getattr(module, name, None) is not None:
            setattr(module, name, value)
    return module


def transposed(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    options = {"stride": stride, "padding": padding}
    for name, value, default in (
        ("output_padding", output_padding, 0),
        ("groups", groups, 1),
        ("dilation", dilation, 1),
    ):
        if value not in (default, (default,) * 2, [default] * 2):
            options[name] = value
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    channels, weights = (
        (weight.shape[0], weight.shape[1] * groups),
        {"weight": weight, "bias": bias},
    )
    size = tuple(weight.shape[2:])
    size = size[0] if len({*size}) == 1 else size
    module = layer(
        "ConvTranspose2d", *channels, size, bias=bias is not None, weights=weights, **options
    )
    return forwarded(module, x)


def affine(weight: Any, bias: Any, option: str) -> dict[str, Any]:
    """The options of a normalisation that has neither, or only a weight."""
    if weight is None and bias is not None:
        raise NotSupportedError("a bias without a weight")
    return {option: False} if weight is None else {"bias": False} if bias is None else {}


def batch_norm(
    x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, cudnn_enabled=True
):
    kind = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d"}.get(x.ndim)
    if kind is None or (mean is None and not training) or eps < 0:
        raise NotSupportedError(f"{x.ndim} axes, no statistics, or a negative eps")
    options = affine(weight, bias, "affine")
    module = layer(kind, x.shape[1], eps, weights={"weight": weight, "bias": bias}, **options)
    if mean is not None:
        module.running_mean, module.running_var = mean.numpy(), var.numpy()
    return forwarded(module.train(training), x)


def instance_norm(
    x,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
    cudnn_enabled=True,
):
    if x.ndim != 4 or running_mean is not None or not use_input_stats or eps < 0:
        raise NotSupportedError(f"{x.ndim} axes, running statistics, or a negative eps")
    if (weight is None) != (bias is None):
        raise NotSupportedError("a weight without a bias, or the reverse")
    options = {"affine": weight is not None, "weights": {"weight": weight, "bias": bias}}
    return forwarded(layer("InstanceNorm2d", x.shape[1], eps, momentum, **options), x)


def function(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of nn.functional: what it refuses counts as not supported."""

    def called(*args, **options):
        tuples = lambda v: tuple(v) if isinstance(v, list) else v  # noqa: E731
        try:
            return f(*map(tuples, args), **{k: tuples(v) for k, v in options.items()})
        except (TypeError, ValueError, NotImplementedError) as error:
            raise NotSupportedError(str(error)) from None

    return called


def attention(*args, dropout_p=0.0, **options):
    if dropout_p:
        raise NotSupportedError("a mask of dropout is random")
    return function(F.scaled_dot_product_attention)(*args, **options)


FUNCTIONS = (
    *("adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "conv1d", "conv2d", "cross_entropy", "elu", "gelu"),
    *("group_norm", "huber_loss", "interpolate", "kl_div", "l1_loss", "layer_norm", "leaky_relu"),
    *("linear", "triplet_margin_loss"),
    *("max_pool1d", "max_pool2d", "mse_loss", "nll_loss", "pad", "prelu", "relu", "rms_norm"),
    *("silu", "smooth_l1_loss", "softplus"),
)
"""Of nn.functional, with the same arguments in both libraries."""

SAME = (
    *("abs", "add", "addcdiv", "addcmul", "all", "amax", "amin", "any", "argmax", "argmin"),
    *("argsort", "atan", "bincount", "bmm", "broadcast_to", "cdist", "chunk", "clamp"),
    *("clone", "cos", "cumprod", "cumsum", "diag", "div", "dot", "eq", "exp", "flatten", "flip"),
    *("full", "gather", "histc", "hstack", "index_add", "index_select", "isfinite", "isinf"),
    *("isnan", "kron", "kthvalue", "lerp", "log", "log2", "log_softmax", "masked_fill"),
    *("masked_select", "matmul", "max", "maximum", "mean", "median", "min", "minimum", "mm"),
    *("mode", "movedim", "mul", "mv", "nan_to_num", "narrow", "norm", "ones", "outer", "permute"),
    *("pow", "prod", "repeat_interleave", "reshape", "roll", "scatter", "scatter_add"),
    *("scatter_reduce", "select", "sigmoid", "sin", "softmax", "sort", "split", "sqrt", "square"),
    *("squeeze", "stack", "std", "sub", "sum", "take_along_dim", "tanh", "tile", "topk"),
    *("transpose", "tril", "triu", "unbind", "unsqueeze", "var", "vstack", "zeros"),
)
"""Of nnmpi, with the same arguments in both libraries."""

CALLS: dict[str, Callable[..., Any]] = {
    **{f"nn.functional.{name}": function(getattr(F, name)) for name in FUNCTIONS},
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.conv_transpose2d": transposed,
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.embedding": function(
        lambda weight, index, **options: F.embedding(index, weight, **options)
    ),
    "nn.functional.upsample_bilinear": function(
        partial(F.interpolate, mode="bilinear", align_corners=True)
    ),
    "nn.functional.upsample_nearest": function(F.interpolate),
    "T": lambda t: t.T,
    "__getitem__": lambda t, index: t[index],
    "__radd__": lambda t, other: other + t,
    "__rand__": lambda t, other: other & t,
    "__rdiv__": lambda t, other: other / t,
    "__rmatmul__": lambda t, other: other @ t,
    "__rmul__": lambda t, other: other * t,
    "__ror__": lambda t, other: other | t,
    "__rpow__": lambda t, other: other**t,
    "__rsub__": lambda t, other: other - t,
    "__rxor__": lambda t, other: other ^ t,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_left_shift": lambda a, b: a << b,
    "bitwise_not": lambda t: ~t,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_right_shift": lambda a, b: a >> b,
    "bitwise_xor": lambda a, b: a ^ b,
    "cat": joined,
    "clamp_max": lambda t, limit: nnmpi.clamp(t, None, limit),
    "clamp_min": nnmpi.clamp,
    "double": lambda t: t.double(),
    "einsum": lambda tensors, equation: nnmpi.einsum(equation, *tensors),
    "expand": lambda t, shape: t.expand(*shape),
    "expand_as": lambda t, other: t.expand_as(other),
    "floor_divide": lambda a, b: a // b,
    "float": lambda t: t.float(),
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
    "mT": lambda t: t.mT,
    "ne": lambda a, b: a != b,
    "neg": lambda t: t.neg(),
    "ravel": lambda t: t.reshape(-1),
    "remainder": lambda a, b: a % b,
    "reshape_as": lambda t, other: t.reshape(other.shape),
    "rsub": lambda a, b, *, alpha=1: nnmpi.sub(b, a, alpha=alpha),
    "split_with_sizes": lambda t, sizes, dim=0: t.split(sizes, dim=dim),
    "t": lambda t: t.t(),
    "true_divide": lambda a, b: a / b,
    "unsafe_split": lambda t, sizes, dim=0: t.split(sizes, dim=dim),
    "view": lambda t, shape: t.reshape(tuple(shape)),
    "view_as": lambda t, other: t.view_as(other),
    "where": lambda t, condition, other: nnmpi.where(condition, t, other),
    **{name: getattr(nnmpi, name) for name in SAME},
}
"""The counterpart of each operator of PyTorch; arguments are PyTorch's."""

METHODS = {
    *SAME,
    "expand",
    "expand_as",
    "floor_divide",
    "ge",
    "gt",
    "le",
    "lt",
    "ne",
    "neg",
    "ravel",
}
METHODS |= {"remainder", "repeat", "t", "unfold", "view", "view_as"}
METHODS -= {"broadcast_to", "cdist", "full", "hstack", "narrow", "ones", "select", "square"}
METHODS -= {"stack", "tril", "triu", "vstack", "zeros"}
"""Operators that are tried as methods of the first argument, too."""

MASKS = {"all", "any", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "eq", "ne"}
MASKS |= {"__rand__", "__ror__", "__rxor__", "where", "lt", "le", "gt", "ge"}
"""The operators that are tried on booleans and integers as well."""


OF_FLOATS = {"argsort", "kthvalue", "mode", "sort", "topk", "add", "index_add", "rsub", "sub"}
"""The operators that are not tried on small integers: PyTorch leaves open the indices of equal
elements, and a negative factor of unsigned integers is refused here."""


def types(op: Any) -> Iterator[torch.dtype]:
    """The types in which an operator is compared."""
    extra = (torch.bool, torch.int64) if op.name in MASKS else (torch.uint8,)
    extra = () if op.name in OF_FLOATS else extra
    for dtype in (torch.float32, torch.float64, *extra):
        if dtype in op.supported_dtypes("cpu"):
            yield dtype


def samples(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[Any]:
    """The samples of an operator, or so many of them from all over; the same in every run."""
    torch.manual_seed(zlib.crc32(f"{op.name} {op.variant_test_name} {dtype}".encode()))
    graded = dtype.is_floating_point and op.supports_autograd
    found = op.sample_inputs("cpu", dtype, requires_grad=graded)
    if limit is None or limit == 1:
        return islice(found, limit)
    first = [*islice(found, 40 * limit)]
    odd = -(-len(first) // limit) | 1  # since options may alternate
    return islice(first, None, None, odd)


def compared(op: Any, sample: Any, as_method: bool) -> str:
    """What differs between the results of a sample, or nothing."""
    leaves = Leaves()
    arguments = each(leaves, (sample.input, *sample.args))
    options = each(leaves, sample.kwargs)
    if op.variant_test_name == "nuc":
        raise NotSupportedError("the sum of singular values")
    if as_method:
        call = bound(getattr(arguments[0], op.name), *arguments[1:], **options)
    else:
        call = bound(CALLS[op.name], *arguments, **options)
    theirs = op(sample.input, *sample.args, **sample.kwargs)
    ours = call()
    found = results_differ(ours, theirs)
    if found:
        return found
    backward(ours, theirs)
    return leaves.difference()


def run(limit: int | None = None) -> Report:
    """All operators of the table on all samples, or on at most so many of each."""
    report = Report({}, [])
    with quiet():
        for op in op_db:
            forms = [form for form in (False, True) if op.name in (METHODS if form else CALLS)]
            for dtype, as_method in product(types(op) if forms else (), forms):
                for i, sample in enumerate(samples(op, dtype, limit)):
                    name = f"t.{op.name}" if as_method else op.name
                    label = f"{op.variant_test_name} {dtype} {i} {sample.summary()}"
                    judged(report, name, label, partial(compared, op, sample, as_method))
    return report
