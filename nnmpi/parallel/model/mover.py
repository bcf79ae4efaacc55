"""Mover: copies named arrays from the ranks and files that have them to the ranks that need them.

    rank 0 of 2   w 0..5   b 0..1  ─┐                           ┌─►  w b   rank 0 of 3
    rank 1 of 2   w 5..9           ─┴─►  a plan, carried out  ──┼─►  w b   rank 1 of 3
    StateArray each                                             └─►  w b   rank 2 of 3

`nearest.py` plans who sends what to whom, and `moving.py` sends it.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.comm import Comm
from nnmpi.nn.place import Range, StateArray
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.moves import Holder, MovedTensor
from nnmpi.parallel.model.moving import arrivals
from nnmpi.parallel.model.nearest import Held, plan_moves

HeldArray: TypeAlias = tuple[Holder, StateArray]
"""(holder, array): a rank or file, and what it has, on paper."""

Sources: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the names of the sources whose sum a target gets; none: it stays."""


def same_name(name: str) -> Sequence[str]:
    """Returns (name,): by default an array is copied from those of its name."""
    return (name,)


def gathered(arrays: Sequence[StateArray], comm: Comm) -> list[HeldArray]:
    """Returns (rank, array on paper) for all ranks' arrays; every rank calls it."""
    of_ranks = gather_objects(comm, [x.on_paper() for x in arrays])
    return [(rank, x) for rank, xs in enumerate(of_ranks) for x in xs]


class Mover:
    """A plan that copies arrays to the ranks that need them. Every rank makes it from the same
    arguments; all carry it out together, any number of times.

    have      the arrays of all ranks and files, on paper (without data)
    need      (rank, array) for each array that a rank needs
    sources   (name of a needed array): the names of the arrays whose sum it is

    Raises ValueError if `have` lacks elements of `need`, or has other shapes.
    """

    def __init__(
        self,
        have: Iterable[HeldArray],
        need: Iterable[tuple[int, StateArray]],
        nodes: Sequence[int],
        sources: Sources = same_name,
    ) -> None:
        by_name = defaultdict[str, list[HeldArray]](list)
        for row in have:
            by_name[row[1].name].append(row)
        tensors, held, needs = dict[str, MovedTensor](), list[Held](), list[tuple[int, Range]]()
        self._names = dict[str, str]()  # of what the holders have, by the name in the plan
        # by rank and range in the plan: the target, and whether this is its last term
        self._targets = dict[tuple[int, Range], tuple[StateArray, bool]]()
        for rank, x in need:
            names = sources(x.name)
            for k, name in enumerate(names):
                path = f"{x.name}, term {k}" if k else x.name
                if path not in tensors:
                    held_by = by_name[name]
                    tensors[path] = _moved(path, x, [source for _, source in held_by])
                    held += [(at, y.range._replace(tensor=path)) for at, y in held_by]
                    self._names[path] = name
                elements = x.range._replace(tensor=path)
                needs.append((rank, elements))
                self._targets[rank, elements] = x, k == len(names) - 1
        self.plan = plan_moves([*tensors.values()], held, needs, nodes)

    def arrivals(
        self, source: Iterable[StateArray], comm: Comm
    ) -> Generator[tuple[StateArray, np.ndarray], None, None]:
        """Yields (array, elements) for each array that this rank needs; all send and receive.

        `source` are the arrays of this rank and of files that were described to the Mover. Every
        rank iterates to the end. An error in reading, or one that the caller throws into the
        generator, is raised after all messages.
        """
        me, sums = comm.rank, dict[Range, np.ndarray]()
        arrays = {(x.file or me, x.range): x for x in source}

        def read(holder: Holder, have: Range, lo: int, hi: int) -> np.ndarray:
            x = arrays[holder, have._replace(tensor=self._names[have.tensor])]
            assert x.read is not None
            return x.read(lo, hi)

        arrived = arrivals(self.plan, comm, read)
        for elements, values in arrived:
            x, is_last = self._targets[me, elements]
            if x.range in sums:
                values = sums.pop(x.range) + values
            if not is_last:
                sums[x.range] = values
                continue
            try:
                yield x, values
            except Exception as error:
                arrived.throw(error)

    def carry_out(
        self, source: Iterable[StateArray], target: Iterable[StateArray], comm: Comm
    ) -> None:
        """Copies arrays as planned, from `source` (of this rank and of files) to `target`, those
        that this rank needs. Every rank calls it."""
        arrived, into = self.arrivals(source, comm), {x.range: x for x in target}
        for x, elements in arrived:
            try:
                into[x.range].put(elements)
            except Exception as error:
                arrived.throw(error)  # and moves the rest: other ranks wait for this one


def _moved(path: str, target: StateArray, sources: Sequence[StateArray]) -> MovedTensor:
    """Returns the whole tensor of a target; sources must have its shape."""
    shape, axes = target.place.shape, target.axes
    for x in sources:
        if (x.place.shape, x.axes) != (shape, axes):
            raise ValueError(
                f"{x.name} has shape {x.place.shape} and memory order {x.axes} in the snapshot, "
                f"but {shape} and {axes} in this model"
            )
    return MovedTensor(path, shape, axes, named(target.dtype), any(x.may_differ for x in sources))


def move(
    source: Sequence[StateArray],
    target: Sequence[StateArray],
    comm: Comm,
    sources: Callable[[Iterable[StateArray]], Sources] = lambda _: same_name,
) -> None:
    """Fills the target arrays of all ranks from the source arrays of all ranks and files. Every
    rank calls it, with the same files. An error on one rank is raised on all, after all messages.

    sources   (arrays): returns the `sources` of the Mover that has these arrays
    """
    local = [x.on_paper() for x in source if not x.file], [x.on_paper() for x in target]
    of_ranks = gather_objects(comm, (*local, comm.node()[0]))  # a node has the number of a rank
    have: list[HeldArray] = [(rank, x) for rank, (xs, _, _) in enumerate(of_ranks) for x in xs]
    have += [(x.file, x) for x in source if x.file]
    need = [(rank, x) for rank, (_, xs, _) in enumerate(of_ranks) for x in xs]
    nodes = [node for _, _, node in of_ranks]
    mover = Mover(have, need, nodes, sources(x for _, x in have))
    all_or_none(comm, lambda: mover.carry_out(source, target, comm))
