"""PyTorch's `torch.nn.functional`: its names, the order of its arguments and its defaults.

>>> import nnmpi.nn.functional as F

Arguments can be given by position where PyTorch has them at the same position, and otherwise by
keyword. An option that nnmpi lacks, or that would mean something else, is refused.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnmpi import addons
from nnmpi.addons import finder
from nnmpi.addons.torchlike.layer_functions import function_of, of_one_call
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.window import Size
from nnmpi.autograd import Tensor, apply, as_tensor, functional, method_functions
from nnmpi.autograd.functional import as_tensors
from nnmpi.autograd.ops import activations, conv, lookup, norm
from nnmpi.autograd.ops import linear as linear_op
from nnmpi.autograd.recording import recording
from nnmpi.nn import in_place
from nnmpi.nn.layers.activations import GELU, Sigmoid, Softplus, Tanh
from nnmpi.nn.layers.basic import check_probability, padding_row, row_numbers
from nnmpi.nn.layers.pooling import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
    Upsample,
)
from nnmpi.nn.losses import CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from nnmpi.nn.module import Module

# ---- activations


def relu(input: Any, inplace: bool = False) -> Tensor:
    """Returns max(x, 0)."""
    return in_place.applied(method_functions.relu, input, inplace)


def silu(input: Any, inplace: bool = False) -> Tensor:
    """Returns x * sigmoid(x)."""
    return in_place.applied(functional.silu, input, inplace)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Returns x where it is positive, and negative_slope * x elsewhere."""
    return in_place.applied(
        partial(functional.leaky_relu, negative_slope=negative_slope), input, inplace
    )


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Returns x where it is positive, and alpha * (exp(x) - 1) elsewhere."""
    return in_place.applied(partial(apply, activations.elu, alpha=float(alpha)), input, inplace)


relu_, leaky_relu_, elu_ = (partial(function, inplace=True) for function in (relu, leaky_relu, elu))

gelu = function_of(GELU)
sigmoid = function_of(Sigmoid)
softplus = function_of(Softplus)
tanh = function_of(Tanh)


def prelu(input: Any, weight: Any) -> Tensor:
    """Returns x where it is positive, else weight * x, with one weight or one per channel."""
    return apply(activations.prelu, *as_tensors(input, weight))


def softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """Returns exp(x) / sum(exp(x)) over `dim`, computed in `dtype` if it is given."""
    return method_functions.softmax(_along("softmax", input, dim, dtype), dim)


def log_softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """Returns log(softmax(x)) over `dim`, computed in `dtype` if it is given."""
    return method_functions.log_softmax(_along("log_softmax", input, dim, dtype), dim)


def _along(name: str, input: Any, dim: int | None, dtype: Any) -> Tensor:
    """Converts the input to `dtype`; raises ValueError if `dim` is None."""
    if dim is None:
        raise ValueError(f"{name}: give dim, such as {name}(x, dim=1) if axis 1 has the classes")
    x = as_tensor(input)
    return x if dtype is None else x.astype(dtype)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Returns the input; in training, each element is replaced by 0 with probability p, and else
    divided by 1 - p.

    The mask depends on the seed and on the number of tensors drawn before. In `forward` of a
    Trainer, where it would depend on the layout of ranks, it raises ValueError.
    """
    check_probability("dropout", "p", p)
    x = as_tensor(input)
    if not training or not p:
        return x
    from nnmpi.nn.drawn_masks import drawn_mask  # for programs with their own loop

    layer = f"write self.drop = nn.Dropout({p}) in __init__, and self.drop(x) in forward"
    mask = drawn_mask("dropout", x.shape, p, x._array, layer)
    return in_place.applied(lambda t: t * Tensor(mask), x, inplace)


# ---- layers whose weights are arguments


def _optional(weight: Any) -> Tensor | None:
    return None if weight is None else as_tensor(weight)


def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """Returns x @ weight.T + bias."""
    return apply(linear_op.linear, *as_tensors(input, weight), _optional(bias))


def _convolution(op: Callable[..., Result]) -> Callable[..., Tensor]:
    """Returns a function like PyTorch's F.conv2d, which calls a convolution op."""

    def function(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> Tensor:
        given = {"stride": stride, "padding": padding, "dilation": dilation}
        sizes = {k: v[0] if len(v) == 1 else v for k, v in given.items() if isinstance(v, Sequence)}
        # the op keeps arrays for a backward pass only if operations are recorded
        options = {**given, **sizes, "groups": groups, "keep": bool(recording.get())}
        return apply(op, *as_tensors(input, weight), _optional(bias), **options)

    function.__name__ = function.__qualname__ = op.__name__
    function.__doc__ = op.__doc__
    return function


conv1d = _convolution(conv.conv1d)
conv2d = _convolution(conv.conv2d)


def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Tensor:
    """Returns the rows of the weight with the numbers `input`; `padding_idx` has no gradient."""
    table = as_tensor(weight)
    index = row_numbers(input, len(table), table)
    return apply(lookup.embedding, table, index=index, padding=padding_row(padding_idx, len(table)))


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises x to mean 0 and variance 1 over its last axes; times weight plus bias."""
    options = {"shape": normalized_shape, "eps": eps}
    return apply(norm.layer_norm, as_tensor(input), _optional(weight), _optional(bias), **options)


def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) over its last axes, times weight."""
    x = as_tensor(input)
    eps = float(np.finfo(types_of(x.dtype).sums).eps) if eps is None else eps
    return apply(norm.rms_norm, x, _optional(weight), shape=normalized_shape, eps=eps)


def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Normalises x (N, C, ...) over each group of channels; times weight plus bias."""
    x = as_tensor(input)
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(
            f"group_norm: input of shape {x.shape} for {num_groups} groups: it must be (N, C, "
            "...), and the number of groups must divide C"
        )
    return apply(norm.group_norm, x, _optional(weight), _optional(bias), groups=num_groups, eps=eps)


# ---- pooling, sizes


def _max_pool(layer: type[Module]) -> Callable[..., Any]:
    """Returns a max-pool layer's function, whose last two options PyTorch exchanges."""
    temporary = of_one_call(layer)

    def function(
        input: Any,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        sizes = (kernel_size, stride, padding, dilation)
        return temporary(*sizes, return_indices, ceil_mode).forward(input)

    return function


max_pool1d = _max_pool(MaxPool1d)
max_pool2d = _max_pool(MaxPool2d)
avg_pool1d = function_of(AvgPool1d)
avg_pool2d = function_of(AvgPool2d)
adaptive_avg_pool2d = function_of(AdaptiveAvgPool2d)
interpolate = function_of(Upsample)


def pad(
    input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Returns x with elements added at the ends of its axes, or removed, as `nnmpi.pad` does."""
    return functional.pad(input, pad, mode, value)


# ---- losses

cross_entropy = function_of(CrossEntropyLoss, "input", "target")
nll_loss = function_of(NLLLoss, "input", "target")
mse_loss = function_of(MSELoss, "input", "target")
l1_loss = function_of(L1Loss, "input", "target")


_ON_USE = addons.names_of("nnmpi.nn.functional")
"""Where the names are that are loaded when they are used first."""

if TYPE_CHECKING:
    from nnmpi.addons.torchlike.functions.gathering import one_hot as one_hot
    from nnmpi.addons.torchlike.layers.distances import cosine_similarity as cosine_similarity
    from nnmpi.addons.torchlike.layers.distances import normalize as normalize
    from nnmpi.addons.torchlike.layers.distances import pairwise_distance as pairwise_distance
    from nnmpi.addons.torchlike.layers.distances import triplet_margin_loss as triplet_margin_loss
    from nnmpi.addons.torchlike.layers.more_activations import hardsigmoid as hardsigmoid
    from nnmpi.addons.torchlike.layers.more_activations import hardswish as hardswish
    from nnmpi.addons.torchlike.layers.more_activations import hardtanh as hardtanh
    from nnmpi.addons.torchlike.layers.more_activations import logsigmoid as logsigmoid
    from nnmpi.addons.torchlike.layers.more_activations import mish as mish
    from nnmpi.addons.torchlike.layers.more_activations import relu6 as relu6
    from nnmpi.addons.torchlike.layers.more_activations import selu as selu
    from nnmpi.addons.torchlike.layers.more_activations import softsign as softsign
    from nnmpi.addons.torchlike.losses import binary_cross_entropy as binary_cross_entropy
    from nnmpi.addons.torchlike.losses import (
        binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    )
    from nnmpi.addons.torchlike.losses import huber_loss as huber_loss
    from nnmpi.addons.torchlike.losses import kl_div as kl_div
    from nnmpi.addons.torchlike.losses import smooth_l1_loss as smooth_l1_loss
    from nnmpi.addons.transformer.dot_product_attention import (
        scaled_dot_product_attention as scaled_dot_product_attention,
    )
else:  # type checkers know from the names above which there are
    __all__ = [  # noqa: PLE0604 - strings, and what is loaded on use
        "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "conv1d", "conv2d",
        "cross_entropy", "dropout", "elu", "embedding", "gelu", "group_norm", "interpolate",
        "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "max_pool1d",
        "max_pool2d", "mse_loss", "nll_loss", "pad", "prelu", "relu", "rms_norm", "sigmoid",
        "silu", "softmax", "softplus", "tanh",
        *_ON_USE,
    ]  # fmt: skip

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_USE})

    def __getattr__(name: str) -> Any:
        if name in _ON_USE:
            globals()[name] = addons.loaded(_ON_USE[name])
            return globals()[name]
        raise finder.missing(
            f"nnmpi.nn.functional has no {name!r}: take the layer of nnmpi.nn, as nn.BatchNorm2d, "
            "or write it with tensor operations"
        )
