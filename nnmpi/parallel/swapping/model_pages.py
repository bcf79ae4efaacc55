"""Model pages: values, gradients and optimizer state of a rank on disk, but for those in use.

    F s       values of s are in memory, those of s + 1 on their way
    B s       values of s, those of s - 1 on their way; gradients of s are written behind it
    UPDATE    pieces of gradients, for their norm, and then of all, one behind the other

They lie in flat buffers of the arena. The system is told a unit, or a piece, ahead what to read and
what to write; what it was not told of comes when it is touched.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from nnmpi.arrays.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.arrangement.residence import MODEL, PIECE, SUMMED
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.swapping.arena import Arena, Blocks


class ModelPages:
    """The pages of the parameters of each stage.

    has_gradients   whether those are on disk too; else ranks sum them, and they stay in memory
    """

    def __init__(
        self,
        arena: Arena,
        store: LocalStore,
        stages: Sequence[Sequence[Parameter]],
        has_gradients: bool,
    ) -> None:
        self._arena, self._store, self._has_gradients = arena, store, has_gradients
        self._own = [[p for p in parameters if p.store is store] for parameters in stages]
        self._values = [
            arena.places(store.values[p.index] for p in parameters) for parameters in self._own
        ]
        self._gradients = [arena.places(store.grad_memories[p.index] for p in s) for s in self._own]
        self._behind: Blocks = []
        if has_gradients:
            arena.singly(arena.places([store.flat_grad]))
        else:
            arena.retag(SUMMED, store.flat_grad)

    def begin(self) -> None:
        """A step begins: gradients of the one before, and what was read since, are let go of."""
        if self._has_gradients:
            self._arena.forget(self._store.flat_grad[self._store.spans[0][0] :])
        self.drop()

    def drop(self) -> None:
        """Nothing is in use: what the system has read around other pages goes too."""
        self._arena.write_out(self._arena.blocks(MODEL))

    def enter(self, s: int, following: int) -> None:
        """A pass of a stage begins, and one of another stage is next."""
        self._arena.read_in(self._values[s])
        if 0 <= following < len(self._values):
            self._arena.start_read(self._values[following])

    def enter_backward(self, s: int) -> None:
        """A backward pass begins; some gradients may be of other passes, and are added to."""
        memories = (self._store.grad_memories[p.index] for p in self._own[s] if p.has_grad)
        self._arena.start_read(self._arena.places(memories))
        self.enter(s, s - 1)

    def leave(self, s: int) -> None:
        """The values of a stage are not needed for a while."""
        self._arena.write_out(self._values[s])

    def leave_backward(self, s: int) -> None:
        """Values and gradients of a stage are not needed; gradients stay until the next is done."""
        self.leave(s)
        if self._has_gradients:
            self._arena.start_write(self._gradients[s])
            self._arena.end_write(self._behind)
            self._behind = self._gradients[s]

    def end_backward(self) -> None:
        """All gradients are there."""
        self._arena.end_write(self._behind)
        self._behind = []

    def in_pieces(self, *arrays: Array) -> Iterator[Sequence[Array]]:
        """The pieces of these arrays, each read before it is yielded and written behind it."""
        arena, behind = self._arena, list[tuple[int, int]]()
        starts = range(0, len(arrays[0]), PIECE)
        pieces = ([array[i : i + PIECE] for array in arrays] for i in starts)
        placed = ((piece, arena.places(piece)) for piece in pieces)
        for (piece, here), (_, following) in pairwise(chain(placed, [([], [])])):
            arena.read_in(here)
            arena.start_read(following)
            yield piece
            arena.start_write(here)
            arena.end_write(behind)
            behind = here
        arena.end_write(behind)
