"""Buckets: stretches of gradients that are summed in one operation, during the backward pass.

The last layers' gradients are final first, so buckets are cut from the end of the flat buffer:

    flat_grad   [ head | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nnmpi.comm import Comm
from nnmpi.parallel.stores.local import Bucket, Stretch


def cut_buckets(
    spans: Sequence[Stretch],
    nbytes: float,
    itemsize: int,
    comm: Comm,
    tied: Mapping[int, Comm] = MappingProxyType({}),
) -> list[Bucket]:
    """Buckets of at least `nbytes` each, the last ones first; no parameter is cut in two.

    `tied` are the parameters, by index, that other stages have too: each is a bucket of its own,
    summed over the ranks of its comm.
    """
    found: list[Bucket] = []
    end = spans[-1][1]
    for i, (start, stop) in reversed([*enumerate(spans)]):
        if i in tied:
            if stop < end:
                found.append(Bucket(stop, end, comm))
            found.append(Bucket(start, stop, tied[i]))
            end = start
        elif (end - start) * itemsize >= nbytes:
            found.append(Bucket(start, end, comm))
            end = start
    if found and end == spans[0][0] and found[-1].comm is comm:
        end = found.pop().stop
    return [*found, Bucket(0, end, comm)]
