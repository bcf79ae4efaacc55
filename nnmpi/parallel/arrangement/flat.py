"""Where parameters lie in the flat buffer of a rank, and how gradients are cut into buckets.

The last layers' gradients are final first, so buckets are cut from the end of the buffer:

    gradients   [ scalars | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank
"""

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

from nnmpi.nn.graph import Graph

NOT_TIED = -1


class HeldVariable(NamedTuple):
    """What a rank has of a parameter or a buffer.

    variable   its number in the graph
    shape      of what is here
    room       what the flat buffer reserves, in elements: the most that any rank has of it
    users      the stages of the rank that use it
    """

    variable: int
    shape: tuple[int, ...]
    room: int
    users: frozenset[int]

    @property
    def size(self) -> int:
        """The number of elements that are here."""
        return prod(self.shape)


class Bucket(NamedTuple):
    """A stretch of gradients that is summed in one operation.

    tied   the place in the buffer of the only parameter in it, if stages of other ranks have that
           too: it is summed over the ranks of all of them
    """

    start: int
    stop: int
    tied: int = NOT_TIED


def cut_buckets(
    spans: Sequence[tuple[int, int]],
    numbers: float,
    tied: Collection[int] = (),
    users: Sequence[frozenset[int]] = (),
) -> list[Bucket]:
    """Buckets of at least so many numbers, the last ones first; no span is cut in two.

    The spans are of parameters, or of units of parameters that are gathered together. Those at the
    indices `tied`, which other stages have too, are buckets alone. If `users` are given, the stages
    that use each span, what is in one bucket has the same ones.
    """
    edges = [(i if i in tied else NOT_TIED, users[i] if users else None) for i in range(len(spans))]
    found, end = list[Bucket](), len(spans)
    for i in reversed(range(len(spans))):
        start, stop = spans[i][0], spans[end - 1][1]
        if i == 0 or edges[i - 1] != edges[i] or stop - start >= numbers:
            found.append(Bucket(start, stop, edges[i][0]))
            end = i
    if found[-1].tied == NOT_TIED:  # the scalars are in the bucket behind them
        return [*found[:-1], found[-1]._replace(start=0)]
    return [*found, Bucket(0, spans[0][0])]


def gathered_together(
    graph: Graph, variables: Sequence[HeldVariable]
) -> list[tuple[HeldVariable, ...]]:
    """Units of parameters: those of one module are in one unit, and one of several modules joins
    these. An op uses parameters of one module, so what it needs is there when their bucket is."""
    units: list[tuple[set[str], list[int]]] = []
    for k, held in enumerate(variables):
        modules = {name.rpartition(".")[0] for name in graph.variables[held.variable].names}
        members = [k]
        for unit in [unit for unit in units if unit[0] & modules]:
            units.remove(unit)
            modules, members = modules | unit[0], members + unit[1]
        units.append((modules, members))
    in_order = sorted(sorted(members) for _, members in units)
    return [tuple(variables[k] for k in members) for members in in_order]


def users_of(variables: Collection[HeldVariable]) -> frozenset[int]:
    """The stages of the rank that use any of these."""
    return frozenset[int]().union(*(held.users for held in variables))
