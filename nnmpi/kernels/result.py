"""What a differentiable kernel returns: a value and one vjp per argument."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nnmpi.backend import Array

Vjp = Callable[[Any, Array | None], Array]
"""`vjp(g, out)`: the gradient of one argument from the gradient `g` of the value.

`out` is None or an array for the result; a vjp that can write there does so and returns it, any
other returns another array. It leaves `g` as it is.
"""

Prepare = Callable[[Array, Sequence[bool]], Any]
"""`prepare(g, needs)`: what the vjps share; each of them then gets this instead of `g`.

`needs` marks the arguments whose gradients will be computed. It is pure: a backward pass in two
halves calls it twice, with needs that have no argument in common.
"""


class Result(NamedTuple):
    """The value of an op, its vjps in the order of its arguments, and what they share.

    `is_view`: the value may lie in the memory of the first argument.
    """

    value: Array
    vjps: tuple[Vjp, ...]
    prepare: Prepare | None = None
    is_view: bool = False
