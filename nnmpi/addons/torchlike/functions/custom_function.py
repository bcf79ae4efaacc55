"""`Function`: a function of tensors whose backward pass its author writes, as in PyTorch.

    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    y = Exp.apply(x)

A node of the tape has one result. If a function has several results, its node has one flat array,
and the results are slices of that array. So the gradients of all results are complete when the node
is visited.
"""

from collections.abc import Sequence
from itertools import compress
from math import prod
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result, shared_vjps
from nnmpi.autograd.recording import recording
from nnmpi.autograd.tensor import Tensor, apply, array_of


class Context:
    """The `ctx` argument of a user's Function, which carries tensors given to `save_for_backward`,
    and any attributes that `forward` sets, to `backward`.

    needs_input_grad   for each argument of `forward`: whether `backward` has to return a gradient
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.materializes = True
        self.without_gradient: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors, which `backward` finds in `saved_tensors`."""
        for t in tensors:
            if isinstance(t, Tensor):
                t.storage.sharing_record()
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Marks results that have no gradient; integers and booleans have none anyway."""
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Accepted as in PyTorch, where False lets `backward` get None for results that nothing
        depends on. Here it gets zeros for them in either case, since all results share one node."""
        self.materializes = value


class Function:
    """The base of functions with their own `forward` and `backward`, called by `apply`."""

    @staticmethod
    def forward(*args: Any, **options: Any) -> Any:
        """Computes the result. The first argument is the context, except in a class that defines
        `setup_context(ctx, inputs, output)`."""
        raise NotImplementedError("a Function needs forward(ctx, ...) as a static method")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Returns the gradient, or None, of each argument, given those of the results."""
        raise NotImplementedError("a Function needs backward(ctx, ...) as a static method")

    setup_context: Any = None

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Calls `forward` as one op, whose gradient `backward` computes."""
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        for i in places:
            args[i].renew()
        recorded = bool(recording.get())
        needs = tuple(recorded and isinstance(a, Tensor) and a.requires_grad for a in args)
        ctx, token = Context(needs), recording.set(False)
        try:
            if cls.setup_context is None:
                result = cls.forward(ctx, *args, **options)
            else:
                result = cls.forward(*args, **options)
                cls.setup_context(ctx, args, result)
        finally:
            recording.reset(token)
        results = result if isinstance(result, tuple) else (result,)
        skipped = {id(t) for t in ctx.without_gradient}
        graded = [
            y
            for y in results
            if isinstance(y, Tensor) and is_float(y.dtype) and id(y) not in skipped
        ]
        if not graded or True not in needs:
            return result
        known = {id(y) for y in graded}
        is_graded = [id(y) in known for y in results]
        made = iter(_recorded(cls, ctx, args, places, results, is_graded))
        outputs = tuple(next(made) if has else y for y, has in zip(results, is_graded, strict=True))
        return outputs if isinstance(result, tuple) else outputs[0]


def _recorded(
    function: type[Function],
    ctx: Context,
    args: Sequence[Any],
    places: Sequence[int],
    results: Sequence[Any],
    is_graded: Sequence[bool],
) -> list[Tensor]:
    """Records a call of a user's Function as one tape node; returns its results that have
    gradients. `places` are the positions of tensors among the arguments."""
    inputs, outputs = [args[i] for i in places], [*compress(results, is_graded)]
    shapes = [y.shape for y in outputs]
    others = [isinstance(y, Tensor) and (y.shape, y.dtype) for y in results]

    def op(*arrays: Array) -> Result:
        xp = xp_of(outputs[0]._array)
        rows = [y._array.reshape(-1) for y in outputs]
        value = outputs[0]._array if len(outputs) == 1 else xp.concatenate(rows)

        def prepare(g: Array, needs: Sequence[bool]) -> list[Array | None]:
            parts = iter([g] if len(shapes) == 1 else _split(g, shapes))
            of_results = [
                Tensor(next(parts)) if has else Tensor(xp.zeros(*other)) if other else None
                for has, other in zip(is_graded, others, strict=True)
            ]
            token = recording.set(False)
            try:
                gradients = function.backward(ctx, *of_results)
            finally:
                recording.reset(token)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return _checked(function.__name__, gradients, inputs, needs, places, len(args))

        return Result(value, shared_vjps(len(arrays)), prepare)

    op.__name__ = function.__name__
    y = apply(op, *inputs)
    if len(outputs) == 1:
        return [y]
    parts, start = [], 0
    for shape in shapes:
        parts.append(y[start : start + prod(shape)].reshape(shape))
        start += prod(shape)
    return parts


def _split(g: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    parts, start = [], 0
    for shape in shapes:
        parts.append(g[start : start + prod(shape)].reshape(shape))
        start += prod(shape)
    return parts


def _checked(
    name: str,
    gradients: tuple[Any, ...],
    inputs: Sequence[Tensor],
    needs: Sequence[bool],
    places: Sequence[int],
    count: int,
) -> list[Array | None]:
    """Returns the gradients that `backward` has returned for `inputs`, the tensors at `places`
    among the arguments, with zeros for None, or None where not needed. Raises ValueError for too
    few or too many gradients, or a wrong shape."""
    if len(gradients) < count or any(g is not None for g in gradients[count:]):
        raise ValueError(
            f"{name}.backward returned {len(gradients)} gradients for {count} arguments of "
            "forward: return one for each, or None"
        )
    arrays: list[Array | None] = []
    for t, needed, place in zip(inputs, needs, places, strict=True):
        if not needed:
            arrays.append(None)
            continue
        g = gradients[place]
        array = xp_of(t._array).zeros(t.shape, t.dtype) if g is None else array_of(g)
        if array.shape != t.shape:
            raise ValueError(
                f"{name}.backward returned a gradient of shape {array.shape} for argument {place}, "
                f"of shape {t.shape}"
            )
        arrays.append(array)
    return arrays
