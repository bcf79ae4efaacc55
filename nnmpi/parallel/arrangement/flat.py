"""Where parameters lie in the flat buffer of a rank, and how gradients are cut into buckets.

The last layers' gradients are final first, so buckets are cut from the end of the buffer:

    gradients   [ scalars | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank
"""

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

from nnmpi.nn.graph import Graph
from nnmpi.nn.store import spans_of

NOT_TIED = -1


class Piece(NamedTuple):
    """What a rank has of a parameter.

    variable   its number in the graph
    shape      of the part that is here
    room       what the flat buffer reserves, in elements: those of the largest part on any rank
    """

    variable: int
    shape: tuple[int, ...]
    room: int

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
    spans: Sequence[tuple[int, int]], numbers: float, tied: Collection[int] = ()
) -> list[Bucket]:
    """Buckets of at least so many numbers, the last ones first; no parameter is cut in two.

    `tied` are the parameters, by their place, that other stages have too: each is a bucket alone.
    """
    found: list[Bucket] = []
    end = spans[-1][1]
    for i, (start, stop) in reversed([*enumerate(spans)]):
        if i in tied:
            if stop < end:
                found.append(Bucket(stop, end))
            found.append(Bucket(start, stop, i))
            end = start
        elif end - start >= numbers:
            found.append(Bucket(start, end))
            end = start
    if found and end == spans[0][0] and found[-1].tied == NOT_TIED:
        end = found.pop().stop
    return [*found, Bucket(0, end)]


class Unit(NamedTuple):
    """Parameters that are gathered together, and the stages of this rank that use them.

    An op uses parameters of one layer, so what it needs is there when their bucket is.
    """

    pieces: tuple[Piece, ...]
    stages: frozenset[int]


def gathered_together(
    graph: Graph, pieces: Sequence[Piece], users: Sequence[frozenset[int]]
) -> list[Unit]:
    """All pieces; parameters of one module are in one unit, and one of several modules joins these.

    `users` are the stages of this rank that use each piece.
    """
    group = {k: [k] for k in range(len(pieces))}
    modules: dict[str, list[int]] = {}
    for k, piece in enumerate(pieces):
        for name in graph.variables[piece.variable].names:
            modules.setdefault(name.rpartition(".")[0], []).append(k)
    for first, *others in modules.values():
        for other in others:
            _join(group, first, other)
    found = []
    for members in {id(members): members for members in group.values()}.values():
        own = sorted(members)
        using = frozenset[int]().union(*(users[k] for k in own))
        found.append(Unit(tuple(pieces[k] for k in own), using))
    return found


def cut_units(found: Sequence[Unit], numbers: float) -> list[Bucket]:
    """Buckets of at least so many numbers, or up to the edge of a stage; the last ones first."""
    sizes = [spans_of([p.room for p in unit.pieces])[-1][1] for unit in found]
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    buckets, end = list[Bucket](), len(found)
    for i in reversed(range(len(found))):
        is_edge = i == 0 or found[i - 1].stages != found[i].stages
        if is_edge or starts[end] - starts[i] >= numbers:
            buckets.append(Bucket(starts[i], starts[end]))
            end = i
    return buckets


def _join(group: dict[int, list[int]], a: int, b: int) -> None:
    one, other = group[a], group[b]
    if one is not other:
        one.extend(other)
        group.update(dict.fromkeys(other, one))
