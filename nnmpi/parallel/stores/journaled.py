"""JournaledNodeStore: a NodeStore of which a rank may be lost in its update, and others finish it.

                       memory of the node                         memory of a rank
NodeStore              values, summed gradients                   running sums, masters
JournaledNodeStore     values, summed gradients, and of each
                       rank [ record | undo | sums | masters ]

What a rank of the node updates is in one place only, the memory of the node. So a rank that is
killed has to leave there all that it has, and all that others need to finish what it has begun
(`journal.py`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array
from nnmpi.comm import NoRoomError
from nnmpi.comm.shared_memory import NodeMemory
from nnmpi.nn.store import UpdateArrays
from nnmpi.parallel.arrangement.flat_buffer import record_length, undo_length
from nnmpi.parallel.stores.journal import Journal, Noted
from nnmpi.parallel.stores.local import StoreSpec
from nnmpi.parallel.stores.masters import MASTER
from nnmpi.parallel.stores.node import NodeStore


def node_store(spec: StoreSpec) -> NodeStore:
    """The store of a node; with journals, where others go on if a rank is lost."""
    return JournaledNodeStore(spec) if spec.dp.fault_tolerant else NodeStore(spec)


class SharedSums(NamedTuple):
    """Running sums of an optimizer by name: this rank's, and those of each rank of the node."""

    own: dict[str, Array]
    of_ranks: list[dict[str, Array]]


class JournaledNodeStore(NodeStore):
    """What each rank of the node has, by its number on the node."""

    def allocate_masters(self) -> None:
        self._memories, self._me = list[NodeMemory](), self._node.index(self.dp.rank)
        self._shards = [self.shards_on_node(r) for r in range(len(self._node))]
        self._lengths = [shards[-1].packed.stop for shards in self._shards]
        self._sums, self._undo, self._journals = list[SharedSums](), list[Array](), list[Journal]()
        self._masters = list[Array]()
        self._of_lost: dict[str, Array] | None = None
        super().allocate_masters()

    def memory_of_masters(self, n: int) -> Array:
        self._masters = self._blocks(self._lengths, MASTER)
        return self._masters[self._me]

    def allocate_sums(self, names: Iterable[str], n: int) -> dict[str, Array]:
        """Memory of the node for running sums of all its ranks, and to undo a block of each; every
        rank calls it."""
        if self._of_lost is not None:
            return self._of_lost
        listed = [*names]
        undo, ranks = undo_length(len(listed), self.updated_dtype), len(self._lengths)
        lengths = [undo] * ranks + [len(listed) * n for n in self._lengths]
        blocks = self._blocks(lengths, self.updated_dtype)  # those that begin in a line are first
        of_ranks = [
            {name: block[i * n : (i + 1) * n] for i, name in enumerate(listed)}
            for block, n in zip(blocks[ranks:], self._lengths, strict=True)
        ]
        own = {name: array[:n] for name, array in of_ranks[self._me].items()}
        self._sums.append(SharedSums(own, of_ranks))
        if not self._undo or len(self._undo[0]) < undo:
            self._undo = blocks[:ranks]
        for journal, memory in zip(self._journals, self._undo, strict=False):
            journal.undo = (memory,)
        return own

    def updates(
        self, start: int, end: int, sums: Mapping[str, Array], at: int
    ) -> Iterator[UpdateArrays]:
        for own in super().updates(start, end, sums, at):
            part = self.journal.rest(len(own.values))
            if part.start < part.stop:
                yield own.part(part)

    def scale(self, array: Array, factor: float) -> None:
        part = self.journal.rest(len(array))
        if part.start < part.stop:
            super().scale(array[part], factor)

    @property
    def undo(self) -> tuple[Array, ...]:
        return self.journal.undo

    # ---- when ranks are lost

    def open_journal(self, decisions: int) -> None:
        n = record_length(decisions, len(self.parameters))
        records = self._blocks([n] * len(self._node), float)
        self._journals = [
            Journal(record, decisions, len(self.parameters), undo)
            for record, undo in zip(records, self._undo, strict=True)
        ]
        self.journal = self._journals[self._me]
        self._memories[-1].barrier()

    def noted(self, step: int) -> Sequence[Noted]:
        found = (journal.noted(step) for journal in self._journals)
        return [one for one in found if one is not None]

    def lost(self, left: Collection[int]) -> Sequence[int]:
        is_left = [self.dp.members[r] in left for r in self._node]
        gone = [r for r, here in enumerate(is_left) if not here]
        return gone[sum(is_left[: self._me]) :: sum(is_left)]

    @contextmanager
    def in_place_of(self, rank: int, sums: Mapping[str, Array]) -> Iterator[None]:
        own = self.shards, self.masters, self.journal
        self.shards, self.journal = self._shards[rank], self._journals[rank]
        self.masters = self.masters_of(self.shards, lambda n: self._masters[rank])
        self._of_lost = next(one.of_ranks[rank] for one in self._sums if one.own is sums)
        self.journal.again()
        try:
            yield
        finally:
            (self.shards, self.masters, self.journal), self._of_lost = own, None

    def close(self) -> None:
        for sums, _ in self._sums:
            for name, array in sums.items():
                sums[name] = array.copy()
        super().close()
        for memory in self._memories:
            memory.free(check=False)

    def _blocks(self, lengths: Sequence[int], dtype: Any) -> list[Array]:
        """Memory of the node with a block for each of its ranks."""
        try:
            memory = self.dp.node_memory(sum(lengths), dtype)
        except NoRoomError as error:  # on all ranks alike
            raise ValueError(f"what is kept for the loss of a rank: {error}") from None
        self._memories.append(memory)
        return [memory.array[a:b] for a, b in pairwise(accumulate(lengths, initial=0))]
