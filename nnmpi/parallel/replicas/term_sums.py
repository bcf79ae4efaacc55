"""Sums of gradients over the ranks along tp: what sequence parallelism adds to any sync.

Parameters of layers that compute some positions are copies, of whose gradients each rank has a
term. The sums over dp come first, bucket by bucket; then each rank sums what it updates of all
these parameters over tp, in one all-reduce. So ZeRO sends its shards only.

    flat_grad   [ ... | norm.weight | norm.bias | c_attn ... | c_proj.bias | ... ]
                        ▼             ▼                        ▼
                      [ norm.weight | norm.bias              | c_proj.bias ]  ─► all-reduce
"""

from collections.abc import Sequence

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
        store, stretches = self._store, self._terms
        own = (shard for stretch in stretches for shard in store.own_shards(*stretch))
        pieces = [*map(store.shard_gradient, own)]  # on all ranks of tp as many numbers
        if not pieces:
            return
        row = store.on.xp.concatenate(pieces)
        all_reduce(row, self._tp)
        at = 0
        for piece in pieces:
            piece[...] = row[at : at + len(piece)]
            at += len(piece)
