"""Who gives each number that a rank needs; from the same values all ranks find the same plan.

    own memory, else a rank of the node, else any rank, else a file

A tensor is cut into cells, each within or without each part that is had. Of a cell, and so of what
a needed part has of it, each holding has one stretch.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple

from nnmpi.nn.place import Part, Place
from nnmpi.parallel.model.boxes import BoxRange, before, common, runs_of
from nnmpi.parallel.model.moves import Holder, MovedTensor, MovePlan, TensorMove, TensorRange

GRAIN = 1 << 20
"""Numbers: of what several ranks have, no more are taken from one before another may be next."""


def plan_moves(
    tensors: Sequence[MovedTensor],
    have: Iterable[TensorRange],
    need: Iterable[TensorRange],
    nodes: Sequence[int],
) -> MovePlan:
    """Each number that a rank needs, once: from its own memory, else from a rank of its node, else
    from any rank, else from a file; of several from the one that has sent least.

    `nodes` has the number of each rank's node. No rank passes on what it is sent: what one rank
    alone has it sends to all that need it, and what several have they send in equal shares. Raises
    ValueError for a number that is nowhere.
    """
    had, needs = _by_tensor(have), _by_tensor(need)
    choice, moves = _Choice(nodes), list[TensorMove]()
    for i in sorted(needs):
        there = [*dict.fromkeys(had[i])]
        if tensors[i].may_differ:
            first = {(one.part, one.lo, one.hi): one for one in reversed(there)}
            there = [*first.values()]
        moves += choice.moves(tensors[i], there, needs[i])
    in_order = chain.from_iterable(needs[i] for i in sorted(needs))
    return MovePlan(tuple(tensors), tuple(in_order), tuple(moves))


def _by_tensor(ranges: Iterable[TensorRange]) -> dict[int, list[TensorRange]]:
    found = defaultdict[int, list[TensorRange]](list)
    for one in ranges:
        found[one.i].append(one)
    return found


class _Held(NamedTuple):
    """The numbers lo to hi - 1 of a box that a holding has."""

    lo: int
    hi: int
    have: TensorRange


class _Choice:
    """Chooses holders, and counts the bytes that each one sends."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes, self._sent = nodes, defaultdict[Holder, int](int)

    def moves(
        self, tensor: MovedTensor, had: Sequence[TensorRange], needs: Sequence[TensorRange]
    ) -> Iterator[TensorMove]:
        """The moves of a tensor."""
        cells, known = _cells(tensor.shape, had), dict[Part, list[_Held]]()
        for need in needs:
            found = defaultdict[TensorRange, list[BoxRange]](list)
            for cell, there in cells:
                box = common(cell, need.part)
                lo, hi = (before(n, need.part, box, tensor.axes) for n in (need.lo, need.hi))
                if lo == hi:
                    continue
                if not there:
                    raise _no_part(tensor, had)
                if box not in known:
                    known[box] = [_held(one, box, tensor.axes) for one in there]
                for one in self._chosen(tensor, need, box, known[box], lo, hi):
                    _append(found[one.have], BoxRange(box, one.lo, one.hi))
            yield from (TensorMove(have, need, tuple(ranges)) for have, ranges in found.items())

    def _chosen(
        self,
        tensor: MovedTensor,
        need: TensorRange,
        box: Part,
        held: Sequence[_Held],
        lo: int,
        hi: int,
    ) -> Iterator[_Held]:
        """Stretches that make up numbers lo to hi - 1 of a box, and who is to give each of them."""
        own = [one for one in held if one.have.holder == need.holder]
        while lo < hi:
            there = [one for one in own if one.lo <= lo < one.hi]
            there = there or [one for one in held if one.lo <= lo < one.hi]
            if not there:
                raise _no_number(tensor, need, BoxRange(box, lo, lo + 1))
            far, _, best = min(
                (self._far(one.have, need), self._sent[one.have.holder], k)
                for k, one in enumerate(there)
            )
            end = min(hi, there[best].hi)
            if far:
                end = min(end, *(one.lo for one in held if one.lo > lo), hi)
                end = min(end, lo + GRAIN) if len(there) > 1 else end
                self._sent[there[best].have.holder] += (end - lo) * tensor.itemsize
            yield _Held(lo, end, there[best].have)
            lo = end

    def _far(self, have: TensorRange, need: TensorRange) -> int:
        """0 in a rank's own memory, 1 on its node, 2 on another one, 3 in a file."""
        a, b = have.holder, need.holder
        if isinstance(a, str) or isinstance(b, str):
            return 3
        return 0 if a == b else 1 + (self._nodes[a] != self._nodes[b])


def _append(ranges: list[BoxRange], one: BoxRange) -> None:
    """Appends a range, or makes the last one longer."""
    if ranges and ranges[-1].box == one.box and ranges[-1].hi == one.lo:
        one = one._replace(lo=ranges.pop().lo)
    ranges.append(one)


def _no_part(tensor: MovedTensor, had: Sequence[TensorRange]) -> ValueError:
    parts = [*dict.fromkeys(one.part for one in had)]
    return ValueError(
        f"{tensor.path}: the parts {parts} that ranks have do not make up its shape "
        f"{tensor.shape}, each number once"
    )


def _no_number(tensor: MovedTensor, need: TensorRange, one: BoxRange) -> ValueError:
    (at,) = runs_of(one, need.part, need.part, tensor.axes).target
    size = Place(tensor.path, tensor.shape, need.part).size
    return ValueError(
        f"{tensor.path}: no rank has number {at} of the {size} of its part {need.part}; give the "
        "ranks all that the ranks had that it was taken from"
    )


def _cells(
    shape: tuple[int, ...], had: Sequence[TensorRange]
) -> list[tuple[Part, list[TensorRange]]]:
    """Boxes that make up the whole tensor, each within or without each part; and the holdings whose
    parts they are in."""
    parts = {one.part for one in had}
    edges = [
        sorted({0, n, *chain.from_iterable(part[k] for part in parts)}) for k, n in enumerate(shape)
    ]
    found = {cell: list[TensorRange]() for cell in product(*map(pairwise, edges))}
    for one in had:
        inside = (
            pairwise(at[bisect_left(at, a) : bisect_left(at, b) + 1])
            for at, (a, b) in zip(edges, one.part, strict=True)
        )
        for cell in product(*inside):
            found[cell].append(one)
    return [*found.items()]


def _held(one: TensorRange, box: Part, axes: Sequence[int]) -> _Held:
    lo, hi = (before(n, one.part, box, axes) for n in (one.lo, one.hi))
    return _Held(lo, hi, one)
