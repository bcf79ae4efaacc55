"""RankModel: what ranks have of a model, and where in the flat buffer it is; Memory: its bytes."""

from bisect import bisect
from collections.abc import Collection
from math import prod
from typing import NamedTuple

from nnmpi.nn.store import spans_of

NOT_TIED = -1


class HeldVariable(NamedTuple):
    """The part of a parameter or a buffer that a rank has, and its room in the flat buffer.

    It holds for all ranks whose parts have this shape; the `Range` of one of them says which part.

    variable   its number in the graph
    shape      of what is here
    room       what the flat buffer reserves, in elements: the most that any rank has of it
    users      the stages of the rank that use it
    region     which part of the flat buffer it is in: all ranks along tp have the even ones, and
               of the odd ones each has its own branches
    """

    variable: int
    shape: tuple[int, ...]
    room: int
    users: frozenset[int]
    region: int = 0

    @property
    def size(self) -> int:
        """The number of elements that are here."""
        return prod(self.shape)


class Bucket(NamedTuple):
    """A stretch of gradients that is summed in one operation: of several parameters, so no `Range`.

    tied   the place in the buffer of the only parameter in it, if stages of other ranks have that
           too: it is summed over the ranks of all of them, in ZeRO 2 and 3 first over the replicas
    """

    start: int
    stop: int
    tied: int = NOT_TIED


class RankModel(NamedTuple):
    """The part of the model that ranks with the same coordinates along pp and tp have.

    stages    their numbers
    trained   parameters in the flat buffer, in its order
    others    frozen parameters and buffers
    scalars   numbers in front of the gradients: loss, stop, and one a parameter that any rank along
              tp has here; so gradients of all of them begin at one place
    buckets   of gradients, in the order in which they are summed
    """

    stages: tuple[int, ...]
    trained: tuple[HeldVariable, ...]
    others: tuple[HeldVariable, ...]
    scalars: int = 0
    buckets: tuple[Bucket, ...] = ()

    @property
    def length(self) -> int:
        """The length of the flat buffer."""
        return self.spans[-1][1] if self.trained else 0

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, end) of each trained parameter in the flat buffer."""
        return spans_of([held.room for held in self.trained], self.scalars)

    def stretches(self, variables: Collection[int]) -> list[tuple[int, int]]:
        """Where those of these variables that are trained are in the flat buffer."""
        pairs = zip(self.trained, self.spans, strict=True)
        return [(at, at + held.size) for held, (at, _) in pairs if held.variable in variables]

    def inside(self) -> dict[Bucket, list[HeldVariable]]:
        """The trained parameters in each bucket."""
        in_order = sorted(self.buckets)
        starts = [bucket.start for bucket in in_order]
        contents: dict[Bucket, list[HeldVariable]] = {bucket: [] for bucket in in_order}
        for held, (start, _) in zip(self.trained, self.spans, strict=True):
            contents[in_order[bisect(starts, start) - 1]].append(held)
        return contents


class Memory(NamedTuple):
    """Bytes on one rank; what a node shares counts on the first of its ranks.

    parameters   values, frozen ones included
    gradients    of trained parameters
    optimizer    optimizer state
    buffers      such as running statistics
    slots        memory in which values or gradients are for a while only
    windows      shared memory of a node, without the parameters and gradients in it
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int = 0
    slots: int = 0
    windows: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)
