"""random: numbers that a module of one's own draws in `forward`, the same in every layout."""

from typing import Any

import numpy as np

from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import CPU, Array
from nnmpi.autograd import Tensor
from nnmpi.nn.module import Module
from nnmpi.nn.passes import Pass, current_pass


def random(
    module: Module,
    shape: tuple[int, ...],
    *,
    normal: bool = False,
    name: str = "",
    like: Tensor | None = None,
) -> Array:
    """Random numbers of a shape whose first axis is that of the samples, in (0, 1) or `normal`.

    They depend on the seed of the model, the step, the path of `module`, the name, and the sample:
    not on ranks, micro-batches, or whether `forward` runs again to save memory. Two calls in one
    `forward` need two names to differ. Type and device are those of `like`, or float32 on the CPU.
    """
    now = current_pass.get() or Pass(module.root.passes)
    on, dtype = (CPU, np.dtype(np.float32)) if like is None else (backend.of(like.data), like.dtype)
    if now.samples is not None and (not shape or len(now.samples) != shape[0]):
        raise ValueError(
            f"random numbers of shape {shape} in a batch of {len(now.samples)}: the first axis "
            "must be that of the samples"
        )
    rows: Any = on.xp.arange(shape[0]) if now.samples is None else on.asarray(now.samples)
    columns = on.xp.arange(int(np.prod(shape[1:])), dtype="uint32")
    key = keyed.key(module.root.seed, "random", now.step, module.path, name)
    draw = keyed.normal if normal else keyed.uniform
    found: Array = draw(key, columns[None], rows[:, None]).reshape(shape).astype(dtype)
    return found if normal else below_one(found)


def below_one(numbers: Array) -> Array:
    """Numbers between 0 and 1, but that none is 1, to which a type may have rounded some."""
    one, zero = numbers.dtype.type(1), numbers.dtype.type(0)
    return backend.xp_of(numbers).minimum(numbers, np.nextafter(one, zero))
