"""A strict stand-in for CuPy, so that the code for the GPU is tested where there is none.

    import strictarray as xp

Every array wraps a NumPy array. Code that runs here should run on CuPy 14: the
stand-in refuses what CuPy refuses, and counts the operations that make the host
wait for the device:

    with strictarray.counting() as count:
        ...
    assert count.total <= 1, count

and what the device does:

    with strictarray.working() as work:
        ...
    assert work.launches <= 3, work

It refuses NumPy arrays as operands, indices, values and outputs; lists where
an array is expected; `where=` of ufuncs; options and types that CuPy does not
have. Its ufuncs return C order, and some have no bfloat16, as CuPy's. Names
that CuPy lacks are missing here too; one that CuPy has and this module lacks
can be added to the tables in `_functions.py`.

In a few places it is stricter than CuPy, which allows what is slow or wrong:

    np.add(x, 1), np.sum(x)           raise: go through xp
    x[numpy_array], x[i] out of range raise; CuPy copies the one and wraps the other round
    x[[0, 0]] = two values            raises: any of them may win on a GPU
    x[1:] = x[:-1]                    raises: a memcpy that overlaps
    for element in x (of one axis)    counts as one wait
    empty, empty_like                 are full of NaN
    copies on a stream                are poisoned until an event is waited for (`cuda/`)
    RawModule: other types of numbers and arrays than the kernel has, and gaps in arrays
"""

import tracemalloc

from strictarray import _core, _functions, _kernels, cuda
from strictarray._array import ndarray
from strictarray._counting import Count, Work, counting, synchronisations, working

__all__ = [
    "Count",
    "Work",
    "_core",
    "counting",
    "cuda",
    "get_default_memory_pool",
    "ndarray",
    "synchronisations",
    "working",
]

globals().update(_functions.NAMES)
if _kernels.COMPILER:  # without one, no kernel in CUDA C runs, and the engine does without
    RawModule = _kernels.RawModule


class _MemoryPool:
    """The memory of all arrays, which are NumPy's here: what tracemalloc follows."""

    def used_bytes(self) -> int:
        return tracemalloc.get_traced_memory()[0]


def get_default_memory_pool() -> _MemoryPool:
    return _MemoryPool()
