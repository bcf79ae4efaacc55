"""What a differentiable kernel hands back: a value and one vjp per argument."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nnmpi.backend import Array

Vjp = Callable[[Any, Array | None], Array]
"""`vjp(g, out)`: the gradient of one argument from the gradient `g` of the value.

`out` is where the caller would like the answer, or None; a vjp that can write
there does and returns it, any other returns an array of its own.
"""

Prepare = Callable[[Array, Sequence[bool]], Any]
"""`prepare(g, needs)`: what the vjps share, computed once per backward pass.

Each vjp then gets this instead of `g`; `needs` says which arguments will be asked for.
"""


class Result(NamedTuple):
    """The value of an op, its vjps in the order of its arguments, and what they share.

    `is_view`: the value may lie in the memory of the first argument.
    """

    value: Array
    vjps: tuple[Vjp, ...]
    prepare: Prepare | None = None
    is_view: bool = False
