"""Plans which rank or file provides each element that a rank needs.

    own memory, else a rank of the node, else any rank, else a file

A tensor is cut into cells along the edges of all boxes (parts) that ranks have. A cell lies
entirely inside or outside of each box, so a holder has all or none of it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple, TypeAlias

from nnmpi.nn.place import Box, Place, Range
from nnmpi.parallel.model.moves import (
    Holder,
    MovedTensor,
    MovePlan,
    TensorMove,
    common,
    overlap,
    runs_of,
)

GRAIN = 1 << 20
"""How many elements are taken from one holder before another one, equally near, may be chosen."""

Held: TypeAlias = tuple[Holder, Range]
"""(holder, range): a range of a tensor, and the rank or file that has it."""


def plan_moves(
    tensors: Sequence[MovedTensor],
    have: Iterable[Held],
    need: Iterable[tuple[int, Range]],
    nodes: Sequence[int],
) -> MovePlan:
    """Plans a source for each element that a rank needs. Of several equally near ones, the one that
    has sent least so far is taken. The plan is the same on all ranks.

    `tensors` are in the order in which they are moved; `have` and `need` name ranks or files, and
    ranges of these tensors; `nodes` has the node of each rank. No rank forwards received elements.
    Raises ValueError for an element that no rank or file has.
    """
    had, needs = defaultdict[str, list[Held]](list), defaultdict[str, list[tuple[int, Range]]](list)
    for holder, item in have:
        had[item.tensor].append((holder, item))
    for rank, item in need:
        needs[item.tensor].append((rank, item))
    picker, moves = _HolderPicker(nodes), list[TensorMove]()
    for tensor in tensors:
        holders = [*dict.fromkeys(had[tensor.path])]
        if tensor.may_differ:  # of equal ranges keep one holder, so that all get the same copy:
            # the dict is filled backwards, and the first holder overwrites the others
            holders = [*{item: (holder, item) for holder, item in reversed(holders)}.values()]
        moves += picker.moves(tensor, holders, needs[tensor.path])
    in_order = chain.from_iterable(needs[tensor.path] for tensor in tensors)
    return MovePlan({tensor.path: tensor for tensor in tensors}, (*in_order,), (*moves,))


class _Overlap(NamedTuple):
    """A candidate to send elements of a cell: its holder, elements, and range."""

    elements: Range
    holder: Holder
    have: Range


class _HolderPicker:
    """Chooses who provides each needed element, and counts bytes to send."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes, self._sent = nodes, defaultdict[Holder, int](int)

    def moves(
        self, tensor: MovedTensor, had: Sequence[Held], needs: Sequence[tuple[int, Range]]
    ) -> Iterator[TensorMove]:
        """Yields the moves that bring the elements of one tensor to the ranks that need them. `had`
        has (holder, range), `needs` (rank, range)."""
        cells, by_box, own = _cells(tensor.shape, had), dict[Box, list[_Overlap]](), {*had}
        for rank, need in needs:
            if (rank, need) in own:  # nothing to cut: most restores keep the layout
                yield TensorMove(rank, need, rank, need, (need,))
                continue
            by_holder = defaultdict[Held, list[Range]](list)
            for cell, holders in cells:
                box = common(cell, need.box)
                elements = overlap(need, box, tensor.axes)
                if not elements.size:
                    continue
                if not holders:
                    raise ValueError(
                        f"{tensor.path}: the parts {[*dict.fromkeys(held.box for _, held in had)]} "
                        f"that ranks have do not cover its shape {tensor.shape} once"
                    )
                if box not in by_box:  # cached, since many ranks need the same box
                    by_box[box] = [
                        _Overlap(overlap(have, box, tensor.axes), holder, have)
                        for holder, have in holders
                    ]
                for part, holder, have in self._chosen(tensor, rank, need, elements, by_box[box]):
                    ranges = by_holder[holder, have]
                    if ranges and ranges[-1].box == part.box and ranges[-1].hi == part.lo:
                        part = part._replace(lo=ranges.pop().lo)
                    ranges.append(part)
            for (holder, have), ranges in by_holder.items():
                yield TensorMove(holder, have, rank, need, (*ranges,))

    def _chosen(
        self,
        tensor: MovedTensor,
        rank: int,
        need: Range,
        elements: Range,
        inside: Sequence[_Overlap],
    ) -> Iterator[_Overlap]:
        """Yields which holder sends which of `elements`, a range of one cell that `rank` needs.
        `inside` has the holders of the cell; `need` is the whole range, for an error message."""
        *_, lo, hi = elements
        while lo < hi:
            givers = [piece for piece in inside if piece.elements.lo <= lo < piece.elements.hi]
            if not givers:
                piece = elements._replace(lo=lo, hi=lo + 1)
                (index,) = runs_of(piece, need.box, need.box, tensor.axes).target
                size = Place(tensor.path, tensor.shape, need.box).size
                raise ValueError(
                    f"{tensor.path}: no rank has element {index} of the {size} in its part "
                    f"{need.box}; give the ranks everything that was in the snapshot of all ranks"
                )
            giver = min(
                givers, key=lambda g: (self._distance(g.holder, rank), self._sent[g.holder])
            )
            end = min(hi, giver.elements.hi)
            # own memory is copied in one piece; a message ends where another holder's range starts
            # and, if several have these elements, after GRAIN of them, so that shares are equal
            if giver.holder != rank:
                end = min(
                    end, *(piece.elements.lo for piece in inside if piece.elements.lo > lo), hi
                )
                end = min(end, lo + GRAIN) if len(givers) > 1 else end
                self._sent[giver.holder] += (end - lo) * tensor.dtype.itemsize
            yield giver._replace(elements=elements._replace(lo=lo, hi=end))
            lo = end

    def _distance(self, holder: Holder, rank: int) -> int:
        """Returns a holder's distance: 0 itself, 1 on its node, 2 elsewhere, 3 a file."""
        if isinstance(holder, str):
            return 3
        return 0 if holder == rank else 1 + (self._nodes[holder] != self._nodes[rank])


def _cells(shape: tuple[int, ...], had: Sequence[Held]) -> list[tuple[Box, list[Held]]]:
    """Cuts a tensor into cells that lie entirely inside or outside of every box in `had`, (holder,
    range) pairs; returns (cell, the entries of `had` that contain it) for each."""
    parts = {elements.box for _, elements in had}
    edges = [
        sorted({0, n, *chain.from_iterable(part[k] for part in parts)}) for k, n in enumerate(shape)
    ]
    cells = {cell: list[Held]() for cell in product(*map(pairwise, edges))}
    for holder, elements in had:
        inside = (
            pairwise(cuts[bisect_left(cuts, a) : bisect_left(cuts, b) + 1])
            for cuts, (a, b) in zip(edges, elements.box, strict=True)
        )
        for cell in product(*inside):
            cells[cell].append((holder, elements))
    return [*cells.items()]
