"""ModelPages: keeps values, gradients and optimizer state of a rank on disk while they are not in
use.

    F s       values of s are in memory, those of s + 1 are being read
    B s       values of s, those of s - 1 are being read; gradients of s are written afterwards
    APPLY     pieces of the gradients, for their norm; then pieces of everything, one by one

They are in flat buffers of the arena. The system is told one unit, or one piece, ahead what to read
and what to write. If it was not told in time, a page is read when it is touched.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from nnmpi.arrays.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.swapping.arena import Arena, Blocks
from nnmpi.parallel.swapping.residence import MODEL, PIECE, SUMMED


class ModelPages:
    """The pages of the values and gradients of each stage.

    has_gradients   True if gradients are on disk too; else ranks sum them, and they stay in memory
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
            arena.pages(store.values[p.index] for p in parameters) for parameters in self._own
        ]
        self._gradients = [arena.pages(store.grad_memories[p.index] for p in s) for s in self._own]
        self._writing: Blocks = []
        if has_gradients:
            arena.no_readahead(arena.pages([store.flat_grad]))
        else:
            arena.retag(SUMMED, store.flat_grad)

    def begin(self) -> None:
        """Begins a step: discards the gradients of the step before, and drops what was read
        since."""
        if self._has_gradients:
            self._arena.discard(self._store.flat_grad[self._store.spans[0][0] :])
        self.drop()

    def drop(self) -> None:
        """Drops all pages from memory, also those that the system has read ahead."""
        self._arena.write_out(self._arena.blocks(MODEL))

    def enter(self, s: int, following: int) -> None:
        """Reads the values of stage s before a pass, and starts to read those of the following
        stage."""
        self._arena.read_in(self._values[s])
        if 0 <= following < len(self._values):
            self._arena.start_read(self._values[following])

    def enter_backward(self, s: int) -> None:
        """Reads what the backward pass of stage s needs: values, and gradients to which it will
        add."""
        memories = (self._store.grad_memories[p.index] for p in self._own[s] if p.has_grad)
        self._arena.start_read(self._arena.pages(memories))
        self.enter(s, s - 1)

    def leave(self, s: int) -> None:
        """Writes out the values of stage s, which are not needed for a while."""
        self._arena.write_out(self._values[s])

    def leave_backward(self, s: int) -> None:
        """Writes out the values of stage s and starts to write its gradients.

        The write ends after the next backward pass, so that the disk and the passes overlap.
        """
        self.leave(s)
        if self._has_gradients:
            self._arena.start_write(self._gradients[s])
            self._arena.end_write(self._writing)
            self._writing = self._gradients[s]

    def end_backward(self) -> None:
        """Waits for the last write of gradients; all of them are complete."""
        self._arena.end_write(self._writing)
        self._writing = []

    def in_pieces(self, *arrays: Array) -> Iterator[Sequence[Array]]:
        """Yields the same piece of each of these arrays, read before it is yielded and written
        afterwards."""
        arena, writing = self._arena, list[tuple[int, int]]()
        starts = range(0, len(arrays[0]), PIECE)
        pieces = ([array[i : i + PIECE] for array in arrays] for i in starts)
        placed = ((piece, arena.pages(piece)) for piece in pieces)
        for (piece, pages), (_, following) in pairwise(chain(placed, [([], [])])):
            arena.read_in(pages)
            arena.start_read(following)
            yield piece
            arena.start_write(pages)
            arena.end_write(writing)  # of the piece before: writing overlaps with computing
            writing = pages
        arena.end_write(writing)
