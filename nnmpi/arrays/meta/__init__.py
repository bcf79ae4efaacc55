"""Arrays without numbers: shape, type and layout only, as on PyTorch's device `meta`.

    x = meta.like(array)     as that array, in no memory
    y = np.exp(x) @ w        a function makes an array without numbers at once

Views are NumPy's own: all these arrays lie at addresses that nothing is read from, so strides,
bases and sizes are those of real arrays. What makes a new array is carried out on small
ones, whose axes have length 2 at most: they tell the type and the order of axes in memory, and a
rule (`shapes.py`) the shape.

What asks for numbers raises NumbersReadError: a branch, `item`, a function without a rule.
"""

from nnmpi.arrays.meta.array import MetaArray as MetaArray
from nnmpi.arrays.meta.functions import is_meta as is_meta
from nnmpi.arrays.meta.functions import like as like
from nnmpi.arrays.meta.functions import xp as xp
from nnmpi.arrays.meta.shapes import NumbersReadError as NumbersReadError
from nnmpi.arrays.meta.shapes import owner as owner
