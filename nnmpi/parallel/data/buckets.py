"""Buckets: stretches of gradients that are summed in one operation, during the backward pass.

The last layers' gradients are final first, so buckets are cut from the end of the flat buffer:

    flat_grad   [ head | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank
"""

from collections.abc import Sequence

from nnmpi.comm import Comm
from nnmpi.parallel.stores.local import Bucket, Stretch


def cut_buckets(spans: Sequence[Stretch], nbytes: float, itemsize: int, comm: Comm) -> list[Bucket]:
    """Buckets of at least `nbytes` each, the last ones first; no parameter is cut in two."""
    found = []
    end = spans[-1][1]
    for start, _ in reversed(spans):
        if (end - start) * itemsize >= nbytes:
            found.append(Bucket(start, end, comm))
            end = start
    if found and end == spans[0][0]:
        end = found.pop().stop
    return [*found, Bucket(0, end, comm)]
