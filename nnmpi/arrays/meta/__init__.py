"""Arrays without data: shape, dtype and memory layout only, as on PyTorch's device `meta`.

    x = meta.like(array)     an array like `array`, which takes no memory
    y = np.exp(x) @ w        each function makes an array without data at once

Views are NumPy's own: all these arrays lie at addresses that are never read, so strides, bases and
sizes are those of real arrays. A function that makes a new array is called on small examples, whose
axes have length 2 at most. The result gives dtype and order of axes, and a rule (`shapes.py`) the
shape.

Operations that need values raise NumbersReadError: a branch, `item`, a function without a rule.
"""

from nnmpi.arrays.meta.array import MetaArray as MetaArray
from nnmpi.arrays.meta.functions import as_constant as as_constant
from nnmpi.arrays.meta.functions import copy_of as copy_of
from nnmpi.arrays.meta.functions import is_meta as is_meta
from nnmpi.arrays.meta.functions import like as like
from nnmpi.arrays.meta.functions import xp as xp
from nnmpi.arrays.meta.shapes import NumbersReadError as NumbersReadError
from nnmpi.arrays.meta.shapes import owner as owner
