"""Operands of one update, in the pieces that an optimizer's `_update` takes."""

from collections.abc import Iterator
from typing import NamedTuple

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.precision import cast, cast_loop, merge_loop
from nnmpi.arrays.kernels.steps import Mixed
from nnmpi.nn.store import UpdateArrays
from nnmpi.optim.groups import Group


class Operands(NamedTuple):
    """The operands of one update: values, gradients, running sums, the number of the step, and what
    it has beside masters."""

    values: Array
    grads: Array
    sums: dict[str, Array]
    t: int
    mixed: Mixed = Mixed()

    def sum_for(self, option: str, group: Group, name: str) -> Array | None:
        """The running sum that an option needs; None where the group does not use the option."""
        if not group[option]:
            return None
        if name not in self.sums:
            raise ValueError(
                f"{option}={group[option]} needs a running sum, which this optimizer was created "
                f"without: create it with {option}={group[option]}, which may then change between "
                "steps"
            )
        return self.sums[name]


def operands_of(x: UpdateArrays, t: int, takes_mixed: bool) -> Iterator[Operands]:
    """All of x for an `_update` that takes 16 bits, where there are some; else a block at a time,
    which is converted here."""
    is_wide = x.grads.dtype == x.values.dtype and x.mixed.is_empty
    if is_wide or takes_mixed:
        yield Operands(x.values, x.grads, x.sums, t, x.mixed)
        return
    n = len(x.values)
    most = min(n, backend.of(x.values).chunk_bytes // 64)
    for i in range(0, n, most):
        yield from _in_float32(x.part(slice(i, min(i + most, n))), t)


def _in_float32(x: UpdateArrays, t: int) -> Iterator[Operands]:
    """The update of masters as one of float32 alone; its values are merged before, and rounded
    when the next one is asked for."""
    grads, values = cast(x.grads, x.values.dtype), x.mixed.values
    if x.mixed.factor != 1:
        grads = grads * x.mixed.factor
    if values is not None:
        merge_loop(x.values, values)
    yield Operands(x.values, grads, x.sums, t)
    if values is not None:
        cast_loop(x.values, values)
