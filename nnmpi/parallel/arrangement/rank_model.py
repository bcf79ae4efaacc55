"""RankModel: the variables that a rank has, and their layout in the flat buffer; Memory: bytes."""

from bisect import bisect
from collections.abc import Collection
from math import prod
from typing import NamedTuple

from nnmpi.nn.store import spans_of

NOT_TIED = -1


class HeldVariable(NamedTuple):
    """The part of a variable that a rank has, and its space in the flat buffer; ranks whose parts
    have the same shape share one.

    variable      its number in the graph
    shape         of the part
    padded_size   elements reserved in the flat buffer: the size of the largest part of any rank
    users         the stages of the rank that use it
    region        even regions of the flat buffer are common to all ranks along tp, odd ones have
                  parameters of one of these ranks, such as those of a parallel branch
    """

    variable: int
    shape: tuple[int, ...]
    padded_size: int
    users: frozenset[int]
    region: int = 0

    @property
    def size(self) -> int:
        """The number of elements of the part that this rank has."""
        return prod(self.shape)


class BucketSlice(NamedTuple):
    """A slice of the flat gradient buffer, of whole parameters, summed in one operation.

    tied   the index of a parameter that stages of other ranks use too; else NOT_TIED. The slice has
           no other parameter. It is summed over the ranks of all these stages; in ZeRO 2 and 3,
           over the replicas of each stage first
    """

    start: int
    stop: int
    tied: int = NOT_TIED


class RankModel(NamedTuple):
    """The part of the model that ranks with the same coordinates along pp and tp have.

    stages    the numbers of their stages
    trained   the parameters in the flat buffer, in its order
    others    frozen parameters, and buffers
    scalars   the number of scalars in front of the gradients; one counts the uses of each parameter
              that any rank along tp has, so that gradients begin at the same index on all of them
    buckets   slices of the gradients, in memory order; they are summed from the last to the first
    """

    stages: tuple[int, ...]
    trained: tuple[HeldVariable, ...]
    others: tuple[HeldVariable, ...]
    scalars: int = 0
    buckets: tuple[BucketSlice, ...] = ()

    @property
    def length(self) -> int:
        """The length of the flat buffer in elements."""
        return self.spans[-1][1] if self.trained else 0

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The (start, end) of each trained parameter in the flat buffer, padding included."""
        return spans_of([held.padded_size for held in self.trained], self.scalars)

    def slices_of(self, variables: Collection[int]) -> list[tuple[int, int]]:
        """Returns the slices of the flat buffer, without padding, of those among `variables`."""
        pairs = zip(self.trained, self.spans, strict=True)
        return [(at, at + held.size) for held, (at, _) in pairs if held.variable in variables]

    def inside(self) -> dict[BucketSlice, list[HeldVariable]]:
        """Returns the trained parameters in each bucket; all are in one if there are no buckets."""
        whole = [BucketSlice(0, self.length)] if self.trained else []
        in_order = self.buckets or whole
        starts = [bucket.start for bucket in in_order]
        contents: dict[BucketSlice, list[HeldVariable]] = {bucket: [] for bucket in in_order}
        for held, (start, _) in zip(self.trained, self.spans, strict=True):
            contents[in_order[bisect(starts, start) - 1]].append(held)
        return contents


class Memory(NamedTuple):
    """The bytes of memory of one rank; memory shared by a node counts on its first rank only.

    parameters   values, frozen ones included
    gradients    of trained parameters
    optimizer    optimizer state
    buffers      such as running statistics
    slots        memory that ZeRO uses temporarily, for gathered values or new gradients
    windows      shared memory of the node, except for parameters and gradients in it
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int = 0
    slots: int = 0
    windows: int = 0

    @property
    def total(self) -> int:
        """The bytes of memory that the rank needs in all: the sum of the fields."""
        return sum(self)
