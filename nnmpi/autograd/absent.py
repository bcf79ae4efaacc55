"""What to write instead of the methods of PyTorch's tensors that tensors here do not have."""

_FUNCTIONS = (
    *("clip", "cos", "exp", "expand_dims", "gelu", "log", "log_softmax", "maximum", "minimum"),
    *("relu", "sigmoid", "sin", "softmax", "sqrt", "swapaxes", "tanh", "where"),
)
_NO_HOOKS = "t.grad after backward(); there are no hooks"
_IN_PLACE = "t[...] = x under nnmpi.no_grad(), or make a new tensor"

_INSTEAD = {name: f"nnmpi.{name}(t)" for name in _FUNCTIONS} | {
    "abs": "abs(t)",
    "add": "a + b",
    "add_": "t += x, under nnmpi.no_grad() if t requires a gradient",
    "amax": "t.max()",
    "amin": "t.min()",
    "argmin": "(-t).argmax()",
    "bmm": "a @ b",
    "bool": "t.astype(bool)",
    "clamp": "nnmpi.clip(t, low, high)",
    "clone": "t.copy()",
    "copy_": _IN_PLACE,
    "cpu": "t.numpy()",
    "cuda": "model.to(on=nnmpi.backend.get('cuda')) and nnmpi.tensor(x, on=...)",
    "dim": "t.ndim",
    "div": "a / b",
    "double": "t.astype('float64')",
    "expand": "nnmpi.broadcast_to(t, shape)",
    "fill_": _IN_PLACE,
    "float": "t.astype('float32')",
    "int": "t.astype('int32')",
    "is_leaf": "t.node is None",
    "long": "t.astype('int64')",
    "masked_fill": "nnmpi.where(mask, value, t)",
    "matmul": "a @ b",
    "mm": "a @ b",
    "mul": "a * b",
    "mul_": "t *= x, under nnmpi.no_grad() if t requires a gradient",
    "norm": "nnmpi.sqrt((t * t).sum())",
    "numel": "t.size",
    "permute": "t.transpose(2, 0, 1), with the same arguments",
    "pow": "t ** n",
    "ravel": "t.reshape(-1)",
    "register_hook": _NO_HOOKS,
    "requires_grad_": "t.requires_grad = True",
    "retain_grad": "loss.backward(until=t) for the gradient of t",
    "sub": "a - b",
    "t": "t.T",
    "to": "t.astype(dtype), or model.to(dtype)",
    "tolist": "t.numpy().tolist()",
    "type": "t.astype(dtype)",
    "view": "t.reshape(-1), with the same arguments",
    "zero_": _IN_PLACE,
}


def message(name: str) -> str:
    """The message for an attribute that a tensor does not have."""
    instead = f": write {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f"a tensor has no attribute {name!r}{instead}"
