"""`grad`, which returns gradients, while `backward` adds them to the leaves."""

from collections.abc import Sequence
from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.autograd.tensor import Tensor, array_of


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
) -> tuple[Tensor | None, ...]:
    """Returns the gradients, with respect to the inputs, of the sum of output * `grad_outputs` over
    all outputs.

    The attribute `grad` of no tensor changes. An input that the outputs do not depend on raises
    RuntimeError, or gets None with `allow_unused`. With `retain_graph` a later backward pass may
    use the same ops again. There are no second derivatives: `create_graph` is not supported.
    """
    if not only_inputs:
        raise ValueError("grad: only_inputs=False is not supported: call backward() for all leaves")
    roots = [outputs] if isinstance(outputs, Tensor) else [*outputs]
    ends: list[Tensor] = [inputs] if isinstance(inputs, Tensor) else [*inputs]
    given = [grad_outputs] if not isinstance(grad_outputs, list | tuple) else [*grad_outputs]
    given = [None] * len(roots) if grad_outputs is None else given
    for i, t in enumerate(ends):
        if not t.requires_grad:
            raise RuntimeError(f"grad: input {i}, of shape {t.shape}, requires no gradient")
    kept = [None if t.grad_array is None else t.grad_array.copy(order="K") for t in ends]
    try:
        gradients = _gradients(_sum(roots, given), ends, bool(retain_graph), create_graph)
    finally:
        for t, gradient in zip(ends, kept, strict=True):
            t.grad_array = gradient
    unused = [i for i, g in enumerate(gradients) if g is None]
    if unused and not allow_unused:
        raise RuntimeError(
            f"grad: the outputs do not depend on input {unused[0]}, of shape "
            f"{ends[unused[0]].shape}: leave it out, or write allow_unused=True to get None for it"
        )
    return tuple(None if g is None else Tensor(g) for g in gradients)


def _sum(roots: Sequence[Tensor], given: Sequence[Any]) -> Tensor:
    """Returns the sum of all outputs `roots`, each weighted by its gradient in `given`. The weight
    may be None, which means 1, for an output with one element only; otherwise raises ValueError."""
    terms = []
    for root, weights in zip(roots, given, strict=True):
        if weights is None and root.numel() != 1:
            raise ValueError(
                f"grad: an output of shape {root.shape} is not a scalar: pass grad_outputs of that "
                "shape, or reduce it first, as by .sum()"
            )
        terms.append((root if weights is None else root * Tensor(array_of(weights))).sum())
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _gradients(
    root: Tensor, ends: Sequence[Tensor], retain_graph: bool, create_graph: bool
) -> list[Array | None]:
    """Returns the gradients of a scalar tensor `root` with respect to the tensors `ends`: by one
    backward pass if all are leaves, else by one pass for each, since one may depend on another."""
    several = all(t.node is None for t in ends)
    groups = [list(ends)] if several else [[t] for t in ends]
    gradients: list[Array | None] = []
    for k, group in enumerate(groups):
        for t in group:
            t.grad_array = None
        retains = retain_graph or k < len(groups) - 1
        root.backward(until=group, retain_graph=retains, create_graph=create_graph)
        for t in group:
            new = t.grad_array
            gradients.append(None if new is None else new.copy(order="K"))
            t.grad_array = None
    return gradients
