"""Sums of gradients over the ranks along tp: what sequence parallelism adds to any sync.

Parameters of layers that compute some positions are copies, of whose gradients each rank has a
term. The sums over dp come first, bucket by bucket; then each rank sums what it updates of all
these parameters over tp, in one all-reduce. So ZeRO sends its shards only.

    flat_grad   [ ... | norm.weight | norm.bias | c_attn ... | c_proj.bias | ... ]
                        ▼             ▼                        ▼
                      [ norm.weight | norm.bias              | c_proj.bias ]  ─► all-reduce
"""

from collections.abc import Iterator, Sequence

from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.parallel.arrangement.flat_buffer import Stretch
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.tensor.ops import all_reduce


class SummedTerms(GradientSync):
    """A GradientSync behind which the gradients in some stretches of the store are summed, too."""

    def __init__(
        self, sync: GradientSync, store: LocalStore, terms: Sequence[Stretch], tp: Comm
    ) -> None:
        self._sync, self._store, self._terms, self._tp = sync, store, terms, tp
        self.every_pass = sync.every_pass
        self.begin, self.begin_pass = sync.begin, sync.begin_pass  # type: ignore[method-assign]
        self.ready, self.reduce = sync.ready, sync.reduce  # type: ignore[method-assign]
        self.poll = sync.poll  # type: ignore[method-assign]

    def finish(self) -> None:
        self._sync.finish()
        pieces = [*self._pieces()]
        if not pieces:
            return
        row = self._store.on.xp.concatenate(pieces)
        all_reduce(row, self._tp)
        at = 0
        for piece in pieces:
            piece[...] = row[at : at + len(piece)]
            at += len(piece)

    def _pieces(self) -> Iterator[Array]:
        """The gradients that this rank updates in these stretches: on all ranks of tp as many."""
        for start, stop in self._terms:
            yield from map(self._store.summed, self._store.own_shards(start, stop))
