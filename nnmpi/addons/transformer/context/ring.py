"""Ring attention: blocks of keys and values are sent around the ranks, and each rank computes with
the block that it has.

    round      0        1        2             forward: C - 1 messages of keys and values
    rank 0     kv 0 ─┐  kv 2 ─┐  kv 1
    rank 1     kv 1 ─┼► kv 0 ─┼► kv 2          backward: the same again, and in each round the
    rank 2     kv 2 ─┘  kv 1 ─┘  kv 0          gradients of what was there go to its owner

Keys and values travel in their own dtype. Their gradients are partial sums and travel in the dtype
of sums, unless sums are rounded after each addition (`narrow_sums` of `Comm.split`).

The gradients of a block are sent directly to its owner, not around the ring. So a message contains
only the keys that were attended to (with a causal mask three quarters of them), and no rank waits
for another rank's sum before it sends.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from nnmpi.addons.transformer.context.sequence_cut import AttendedSlices, SequenceCut
from nnmpi.addons.transformer.kernels.attention import (
    KeepOf,
    Scores,
    attention,
    attention_gradients,
    join,
)
from nnmpi.addons.transformer.kernels.heads import Heads
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result, progress_hook
from nnmpi.arrays.kernels.precision import cast
from nnmpi.comm import Comm
from nnmpi.parallel.wire import Transfer, wire_for

KV_TAG, GRADIENT_TAG = 0, 1
"""The tags of messages: keys and values, and their gradients."""


class Ring(NamedTuple):
    """The ranks along cp, which share sequences, for attention that sends keys and values around a
    ring: `comm` is their Comm, and `cut` says which positions of a sequence each of them has."""

    comm: Comm
    cut: SequenceCut

    def travelling(self, kv: Array) -> Iterator[tuple[int, Array]]:
        """Yields (r, keys and values of rank r) for all ranks r, this rank first, given its own as
        kv (2, N, H, positions of this rank, D); while the caller computes, the next block is
        received."""
        comm, current = self.comm, kv
        wire, (_, N, H, _, D) = wire_for(comm, kv), kv.shape
        for s in range(comm.size):
            r, previous = (comm.rank - s) % comm.size, (comm.rank - s - 1) % comm.size
            works: list[Transfer] = []
            if s < comm.size - 1:
                arriving = xp_of(kv).empty((2, N, H, self.cut.count(previous), D), kv.dtype)
                works.append(wire.isend(current, (comm.rank + 1) % comm.size, KV_TAG))
                works.append(wire.irecv(arriving, (comm.rank - 1) % comm.size, KV_TAG))
            # kernels call the hook now and then, so messages move while this rank computes
            token = progress_hook.set(partial(_poll, progress_hook.get(), comm))
            try:
                yield r, current
            finally:
                progress_hook.reset(token)
            for work in works:
                work.wait()
            if works:
                current = arriving

    def exchange(self, s: int, sent: Array, total: Array, causal: bool) -> Callable[[], None]:
        """Starts to send gradients of keys and values to the rank that has these keys, s places
        before this one, and to receive those of this rank's keys from the rank s places after it.
        Returns a function that waits, and adds what has arrived to `total`.

        sent   (2, N, H, keys attended to on this rank, D), the gradients computed in this round
        total  (2, N, H, keys of this rank, D), the sum of gradients
        causal True if a query sees no later keys, so that fewer keys have gradients
        """
        comm = self.comm
        wire, other = wire_for(comm, sent), (comm.rank + s) % comm.size
        keys = self.cut.seen(other, comm.rank, causal).keys
        mine = total[:, :, :, keys]
        arrived = xp_of(sent).empty(mine.shape, sent.dtype)
        works = [
            wire.isend(sent, (comm.rank - s) % comm.size, GRADIENT_TAG),
            wire.irecv(arrived, other, GRADIENT_TAG),
        ]

        def add() -> None:
            for work in works:
                work.wait()
            mine[...] += arrived

        return add


def _poll(earlier_hook: Callable[[], object], comm: Comm) -> None:
    earlier_hook()
    comm.poll()


class _Scoring(NamedTuple):
    """Which queries of this rank attend to which keys of another one, and how they are scored; its
    fields are arguments of `ring_attention`."""

    scale: float
    causal: bool
    keep_of: KeepOf | None
    ring: Ring

    def part(self, r: int, xp: Any) -> tuple[AttendedSlices, Scores]:
        """Returns the slices of this rank's queries and rank r's keys that attend to each other,
        and how to score them."""
        cut, me = self.ring.cut, self.ring.comm.rank
        seen, keep = cut.seen(me, r, self.causal), None
        if self.keep_of is not None:
            queries, keys = cut.of(me)[seen.queries], cut.of(r)[seen.keys]
            keep = self.keep_of(xp.asarray(queries), xp.asarray(keys))
        return seen, Scores(self.scale, causal=seen.causal, keep=keep)


def ring_attention(
    qkv: Array, *, scale: float, causal: bool, keep_of: KeepOf | None, ring: Ring
) -> Result:
    """Returns the self-attention of qkv (N, t, K, G + 2, D) as (N, t, K G, D). This rank has t
    positions of each sequence; the keys and values of others come from the other ranks of `ring`.

    K is the number of key heads, each with G query heads. Scores are multiplied by `scale`; with
    `causal` a query sees no later keys; `keep_of` returns the dropout mask.
    """
    xp, dtype = xp_of(qkv), types_of(qkv.dtype).sums
    scoring = _Scoring(scale, causal, keep_of, ring)
    (N, t, K, G, D), q = qkv[:, :, :, :-2].shape, _by_head(qkv[:, :, :, :-2])
    y = xp.zeros((N, t, K, G, D), dtype)
    rows, lse = _by_head(y), xp.full(q.shape[:-1], -xp.inf, dtype)
    for r, kv_of in ring.travelling(_keys_and_values(qkv)):
        seen, scores = scoring.part(r, xp)
        k, v = kv_of[:, :, :, seen.keys]
        y_rows, lse_rows = rows[..., seen.queries, :], lse[..., seen.queries]
        partial = xp.empty(y_rows.shape, dtype), xp.empty(lse_rows.shape, dtype)
        attention(Heads(q[..., seen.queries, :], k, v), scores, *partial)
        join(y_rows, lse_rows, *partial)
    value = cast(y, qkv.dtype)

    def vjp(g: Array, out: Array | None) -> Array:
        return _gradient(g.reshape(value.shape), qkv, value, lse, scoring)

    return Result(value.reshape(N, t, K * G, D), (vjp,))


def _gradient(g: Array, qkv: Array, value: Array, lse: Array, scoring: _Scoring) -> Array:
    """Returns the gradient of qkv, given that of the attention `value` (N, t, K, G, D); `lse` are
    the logarithms of the sums of exponentials."""
    xp, dtype, ring = xp_of(qkv), types_of(qkv.dtype).sums, scoring.ring
    d, rows, q = xp.empty(qkv.shape, dtype), _by_head(value), _by_head(qkv[:, :, :, :-2])
    d[:, :, :, :-2] = 0
    dq, dy = _by_head(d[:, :, :, :-2]), _by_head(g)
    mine = _keys_and_values(qkv)
    total, under_way = xp.empty(mine.shape, dtype), list[Callable[[], None]]()
    travels = qkv.dtype if ring.comm.narrow_sums else dtype
    for s, (r, kv_of) in enumerate(ring.travelling(mine)):
        seen, scores = scoring.part(r, xp)
        k, v = kv_of[:, :, :, seen.keys]
        queries = seen.queries
        dkv = xp.empty((2, *k.shape), dtype) if s else total  # round 0: its own keys
        of_rows = rows[..., queries, :], lse[..., queries], dy[..., queries, :]
        partial = xp.empty(of_rows[0].shape, dtype)
        heads, of_heads = Heads(q[..., queries, :], k, v), Heads(partial, *dkv)
        attention_gradients(heads, scores, *of_rows, of_heads)
        dq[..., queries, :] += partial
        if under_way:  # at most one exchange is in flight
            under_way.pop()()
        if s:
            under_way.append(ring.exchange(s, cast(dkv, travels), total, scoring.causal))
    for add in under_way:
        add()
    d[:, :, :, -2:] = total.transpose(1, 3, 2, 0, 4)
    return cast(d, qkv.dtype)


def _keys_and_values(qkv: Array) -> Array:
    """Returns the keys and the values of qkv (N, t, K, G + 2, D) as (2, N, K, t, D)."""
    kv: Array = xp_of(qkv).ascontiguousarray(qkv[:, :, :, -2:].transpose(3, 0, 2, 1, 4))
    return kv


def _by_head(x: Array) -> Array:
    """Returns x (N, t, K, G, D) as a view (N, K, G, t, D): the G query heads of each key head."""
    return x.transpose(0, 2, 3, 1, 4)
