"""Kernels: functions of arrays that compute the values and gradients of ops. Here: what all of them
use, such as the types of an op's result and of its vjps (vector-Jacobian products)."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.native.table import Out, kernel

Vjp = Callable[[Any, Array | None], Array]
"""A function vjp(g, out): computes an argument's gradient from the gradient `g` of the op's value.

`out` is None, or an array for the result: a vjp that can write there does so and returns it, any
other vjp returns another array. A vjp does not change `g`.
"""

Prepare = Callable[[Array, Sequence[bool]], Any]
"""A function prepare(g, needs): computes what the vjps share; each vjp gets its result instead of
`g`.

`needs` marks the arguments whose gradients will be computed. `prepare` changes nothing, since a
backward pass in two halves calls it twice, with needs that have no argument in common. So it may
send messages for one argument only, as BatchNorm does for x (sums over ranks): then exactly one
half sends them, the same one on every rank.
"""


class PlacedGradients(NamedTuple):
    """A Prepare that writes gradients of parameters into their memory, where they have none yet.

    in_memory   Prepare with a third argument: for each argument of the op this memory, or None. The
                vjps return the arrays that are written
    """

    in_memory: Callable[[Array, Sequence[bool], Sequence[Any]], Any]

    def __call__(self, g: Array, needs: Sequence[bool]) -> Any:
        return self.in_memory(g, needs, [None] * len(needs))


class Result(NamedTuple):
    """The result of an op on arrays.

    vjps      for each argument, a function that computes its gradient from that of the value
    prepare   computes once, from the gradient of the value, what all vjps need; None: they take
              the gradient itself
    is_view   True if the value may share memory with the first argument
    """

    value: Array
    vjps: tuple[Vjp, ...]
    prepare: Prepare | PlacedGradients | None = None
    is_view: bool = False


@lru_cache
def shared_vjps(n: int) -> tuple[Vjp, ...]:
    """Returns vjps for an op whose `prepare` computes all n gradients."""
    return tuple(lambda gradients, out, k=k: gradients[k] for k in range(n))


progress_hook: ContextVar[Callable[[], object]] = ContextVar(
    "nnmpi_progress_hook", default=lambda: None
)
"""A function that long computations call every few milliseconds, since MPI moves no messages while
a rank computes; code that has messages in flight sets it.

It is called between the layers of a Sequential, and in backward passes between nodes and between
the chunks of a kernel. It is a context variable, since ranks may be threads.
"""


_CACHED = 1 << 14  # the longest vector of ones that is cached


@lru_cache(maxsize=64)
def _ones(n: int, dtype: Any, xp: Any) -> Array:
    return xp.ones(n, dtype)


def column_sum(g: Array, out: Array | None = None) -> Array:
    """Sums g (n, k) over its rows."""
    total = xp_of(g).empty(g.shape[1], g.dtype) if out is None else out
    column_sum_loop(g, total)
    return total


@partial(kernel, composed=True)
def column_sum_loop(g: Array, out: Out) -> None:
    """Writes the sum of g (n, k) over its rows."""
    xp, n, sums = xp_of(g), len(g), types_of(g.dtype).sums
    # a product with ones is 6 times as fast as g.sum(0) on the host; a device might round its
    # factors to TF32
    if sums != g.dtype or not of(g).is_host:
        out[...] = g.sum(axis=0, dtype=sums)
    else:
        ones = _ones(n, g.dtype, xp) if n <= _CACHED else xp.ones(n, g.dtype)
        xp.dot(ones, g, out=out)
