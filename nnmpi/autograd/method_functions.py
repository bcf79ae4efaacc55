"""The methods of tensors as functions, such as nnmpi.exp(t) for t.exp()."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from nnmpi.autograd.tensor import Tensor, as_tensor

__all__ = [
    "abs", "absolute", "add", "all", "allclose", "amax", "amin", "any", "argmax", "argmin",
    "bmm", "chunk", "clamp", "clip", "clone", "cos", "cumsum", "dot", "eq", "exp",
    "expand_dims", "flatten", "floor_divide", "isfinite", "isinf", "isnan", "log",
    "log_softmax", "masked_fill", "matmul", "max", "mean", "min", "mm", "mul", "mv", "permute",
    "pow", "prod", "relu", "remainder", "reshape", "sigmoid", "sin", "softmax", "split", "sqrt",
    "squeeze", "std", "sub", "sum", "swapaxes", "tanh", "transpose", "unsqueeze", "var",
]  # fmt: skip


def _function(name: str) -> Callable[..., Tensor]:
    """The function that calls the tensor method `name`, also on an array or numbers."""
    method = getattr(Tensor, name)

    @wraps(method)
    def function(t: Any, *args: Any, **options: Any) -> Any:
        return method(t if isinstance(t, Tensor) else as_tensor(t), *args, **options)

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__  # pickle looks it up there
    return function


def pow(a: Any, b: Any) -> Tensor:
    """a ** b; one of them may be a number."""
    power: Tensor = a**b
    return power


abs = absolute = _function("abs")
add = _function("add")
all = _function("all")
allclose: Any = _function("allclose")
amax = _function("amax")
amin = _function("amin")
any = _function("any")
argmax = _function("argmax")
argmin = _function("argmin")
bmm = dot = matmul = mm = mv = _function("matmul")
chunk: Any = _function("chunk")
clamp = clip = _function("clamp")
clone = _function("clone")
cos = _function("cos")
cumsum = _function("cumsum")
eq = _function("eq")
exp = _function("exp")
flatten = _function("flatten")
floor_divide = _function("floor_divide")
isfinite = _function("isfinite")
isinf = _function("isinf")
isnan = _function("isnan")
log = _function("log")
log_softmax = _function("log_softmax")
masked_fill = _function("masked_fill")
max: Any = _function("max")
mean = _function("mean")
min: Any = _function("min")
mul = _function("mul")
permute = _function("permute")
prod = _function("prod")
relu = _function("relu")
remainder = _function("remainder")
reshape = _function("reshape")
sigmoid = _function("sigmoid")
sin = _function("sin")
softmax = _function("softmax")
split: Any = _function("split")
sqrt = _function("sqrt")
squeeze = _function("squeeze")
std = _function("std")
sub = _function("sub")
sum = _function("sum")
tanh = _function("tanh")
transpose = swapaxes = _function("transpose")
unsqueeze = expand_dims = _function("unsqueeze")
var = _function("var")
