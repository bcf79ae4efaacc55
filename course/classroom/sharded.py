"""Compares a function of parts of arrays, one on each rank, with the same function on one rank."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import nnmpi
from classroom.check import FaultError, Finding
from classroom.collectives import Collectives
from classroom.compare import counted, differs, explained, first, needed, shape_of
from classroom.traffic import sent
from nnmpi.comm import Comm
from nnmpi.comm.arguments import Array

NONE: Mapping[str, Any] = {}
SHARE = "the ranks' arrays add up to what is expected: an all-reduce is missing"


class Axis(NamedTuple):
    """An axis along which arrays are cut, into parts whose lengths are multiples of `unit`."""

    number: int
    unit: int = 1


class Argument(NamedTuple):
    """An argument in whole; without an axis, every rank has all of it."""

    name: str
    values: Array
    axis: Axis | None = None


class Sharded(NamedTuple):
    """A function of parts, the same function on one rank, and their arguments in whole.

    call     (Collectives, *parts) -> (result, vjp)
    truth    (*tensors of nnmpi) -> tensor
    axis     the axis along which the result is cut
    hints    results of well-known mistakes, by what they are
    slips    functions of g that return the gradients in whole, as a well-known mistake in the vjp
             gives them, by what it is
    """

    arguments: tuple[Argument, ...]
    call: Callable[..., Any]
    truth: Callable[..., Any]
    axis: Axis | None = None
    hints: Mapping[str, Any] = NONE
    slips: Mapping[str, Callable[[Array], Sequence[Array]]] = NONE


def span(n: int, rank: int, size: int) -> slice:
    """A rank's part of n elements, as `Comm.chunk` cuts them."""
    return slice(n * rank // size, n * (rank + 1) // size)


def mine(comm: Comm, array: Array, axis: Axis | None) -> Array:
    """A copy of this rank's part of an array."""
    if axis is None:
        return array.copy()
    units = span(array.shape[axis.number] // axis.unit, comm.rank, comm.size)
    at = slice(units.start * axis.unit, units.stop * axis.unit)
    return array[(slice(None),) * axis.number + (at,)].copy()


def pair(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A result and a vjp, which gives None if there is none."""
    if isinstance(value, tuple) and len(value) == 2 and callable(value[1]):
        return value
    return value, lambda g: None


def used(
    call: Callable[..., Any], arguments: Sequence[Array], shape: tuple[int, ...], label: str
) -> tuple[Any, Callable[[Any], list[Array]]]:
    """The result and the vjp of a call, for a check that goes on with arrays of their shapes."""
    y, vjp = pair(call(*arguments))

    def gradients(g: Any) -> list[Array]:
        got = vjp(g)
        got = got if isinstance(got, tuple | list) else (got,)
        if len(got) != len(arguments):
            raise FaultError(f"{label}: {len(got)} gradients, expected {len(arguments)}")
        labels = [f"{label}: gradient {i}" for i in range(len(got))]
        return [needed(d, a.shape, name) for d, a, name in zip(got, arguments, labels, strict=True)]

    return needed(y, shape, f"{label}: the result"), gradients


def compared(
    comm: Comm, got: Any, expected: Array, label: str, hints: Mapping[str, Any], is_whole: bool
) -> Finding | None:
    """A finding if arrays differ; if whole ones add up to what is expected, it says so."""
    wrong = differs(comm.rank, got, expected, label)
    sums = np.zeros(expected.shape)
    if is_whole and comm.size > 1:
        sums += got if not shape_of(got, expected.shape, "") else 0
        comm.all_reduce(sums, "ring")
        if wrong and np.allclose(sums, expected, rtol=1e-9, atol=1e-12):
            return wrong._replace(text=f"{wrong.text}: {SHARE}")
    return explained(wrong, got, hints)


def on_one_rank(case: Sharded, g: Array) -> tuple[Array, list[Array]]:
    """The result and the gradients of the arguments, by nnmpi's autograd."""
    tensors = [nnmpi.tensor(a.values, requires_grad=True) for a in case.arguments]
    y = case.truth(*tensors)
    y.backward(g)
    return np.asarray(y.data), [np.asarray(t.grad) for t in tensors]


def differs_from_one_rank(comm: Comm, case: Sharded, g: Array, label: str = "") -> Finding | None:
    """A finding if the result or a gradient differs, or an argument was changed; g is whole."""
    expected, gradients = on_one_rank(case, g)
    given = [mine(comm, a.values, a.axis) for a in case.arguments] + [mine(comm, g, case.axis)]
    copies, names = [array.copy() for array in given], [a.name for a in case.arguments]
    y, vjp = pair(case.call(Collectives(comm), *given[:-1]))
    y = np.array(y) if isinstance(y, np.ndarray) else y
    got = vjp(given[-1])
    got = got if isinstance(got, tuple | list) else (got,)
    if len(got) > len(names):
        raise FaultError(f"{label}the vjp returns {len(got)} gradients, expected {len(names)}")
    got = [*got, *(None for _ in names)][: len(names)]
    of_result = mine(comm, expected, case.axis), f"{label}the result", case.hints
    wrong = compared(comm, y, *of_result, case.axis is None)
    each, slipped = [], {name: slip(g) for name, slip in case.slips.items()}
    for i, (a, d, e) in enumerate(zip(case.arguments, got, gradients, strict=True)):
        hints = {name: mine(comm, of_all[i], a.axis) for name, of_all in slipped.items()}
        of_gradient = mine(comm, e, a.axis), f"{label}the gradient of {a.name}", hints
        each.append(compared(comm, d, *of_gradient, a.axis is None))
    written = [f"{label}after the call, its argument {name}" for name in [*names, "g"]]
    kept = map(partial(differs, comm.rank), given, copies, written)
    return wrong or first(*each) or first(*kept)


def counted_sums(
    comm: Comm, case: Sharded, label: str, forward: int, backward: int, g: Array
) -> Finding | None:
    """A finding if the function and its vjp send other bytes than all-reduces of so many
    numbers."""
    facade = Collectives(comm)
    parts = [mine(comm, a.values, a.axis) for a in case.arguments]
    value, first_half = sent(comm, lambda: case.call(facade, *parts))
    _, vjp = pair(value)
    _, second_half = sent(comm, lambda: vjp(mine(comm, g, case.axis)))
    unit = 2 * (comm.size - 1) * 8  # bytes over all ranks, for each number in an all-reduce
    return first(
        counted(comm.rank, first_half, forward * unit, f"{label}: bytes sent by all ranks"),
        counted(comm.rank, second_half, backward * unit, f"the vjp of {label}: bytes"),
    )
