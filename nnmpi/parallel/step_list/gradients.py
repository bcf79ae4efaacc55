"""Adds the sums of gradients to a rank's list of operations.

    ZeRO 0, 1    B2.0 B1.0 B2.1 SUM2 B1.1 SUM1 FINISH2 FINISH1
    ZeRO 2, 3    OPEN2.0@0 B2.0 SUM2.0@0  OPEN1.0@1 B1.0 SUM1.0@1  FINISH2.0@0 OPEN2.1@0 B2.1 ...

B2.0 is the backward pass of unit 2 with micro-batch 0, and @0 is slot 0. OPEN2.0@0 lets bucket 2
use the slot, SUM starts to sum its gradients, and FINISH waits for the sum. All ranks start sums
from the last bucket to the first, the order in which gradients become final. Without overlap, a
rank waits for each sum before it begins anything else. An exception is the sum of a parameter that
other stages have too: the ranks of two stages start these sums in different orders, and would wait
for each other forever."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.op import ADDS, NONE, SENDS, Kind, Op


def with_sums(ops: Iterable[Op], chain: Chain, overlap: bool = True) -> Iterator[Op]:
    """Yields a rank's operations with the sum of each bucket added. SUM starts it, after the last
    pass that adds to the bucket or, without `overlap`, after all passes."""
    passes = [*ops]
    last = {op.at: _behind(passes, k) for k, op in enumerate(passes) if op.kind in ADDS}
    sums, after = defaultdict[int, list[Op]](list), passes.index(Op(Kind.NOTE))
    for b in reversed(range(len(chain.lengths))):
        after = max([after, *(last[u] for u in chain.users[b] if u in last)])
        sums[after].append(Op(Kind.SUM, at=b))
    for k, op in enumerate(passes):
        yield op
        if overlap:
            yield from sums[k]
    late = list[Op]()
    for b in reversed(range(len(chain.lengths))):
        if not overlap:
            yield Op(Kind.SUM, at=b)
        if overlap or b in chain.tied:
            late.append(Op(Kind.FINISH, at=b))
        else:
            yield Op(Kind.FINISH, at=b)
    yield from late


def with_scatters(ops: Iterable[Op], chain: Chain, overlap: bool = True) -> Iterator[Op]:
    """Yields a rank's operations with OPEN, SUM and FINISH of each bucket, for each backward pass
    of a stage (ZeRO 2 and 3). FINISH comes just before another bucket is opened in the slot;
    without `overlap`, directly after SUM."""
    passes, slots = [*ops], gradient_slots(chain)
    opened, summed = _spans(passes, chain)
    flying = dict[int, Op]()  # by slot
    for k, op in enumerate(passes):
        for b, micro in opened[k]:
            if slots[b] in flying:
                yield flying.pop(slots[b])
            yield Op(Kind.OPEN, micro, at=b, slot=slots[b])
        yield op
        for b, micro in summed[k]:
            yield Op(Kind.SUM, micro, at=b, slot=slots[b])
            flying[slots[b]] = Op(Kind.FINISH, micro, at=b, slot=slots[b])
            if not overlap:
                yield flying.pop(slots[b])
    yield from flying.values()


def gradient_slots(chain: Chain) -> dict[int, int]:
    """Returns a dict: bucket -> its slot, always the same, since recorded passes write to fixed
    addresses. Buckets that are open at the same time have different ones. There is one slot more
    than that needs, so that one sum can overlap with a pass."""
    passes = [Op(Kind.B, 0, s, u) for s, us in chain.of_stage.items() for u in reversed(us)]
    opened, summed = _spans(passes, chain)
    beside, open_buckets, most = defaultdict[int, set[int]](set), set[int](), 0
    for k in range(len(passes)):
        open_buckets |= {b for b, _ in opened[k]}
        most = max(most, len(open_buckets))
        for b in open_buckets:
            beside[b] |= open_buckets
        open_buckets -= {b for b, _ in summed[k]}
    slots, turn = dict[int, int](), [*range(most + 1)]
    for b in beside:  # in the order in which they are opened
        taken = {slots[o] for o in beside[b] if o in slots}
        slots[b] = next((s for s in turn if s not in taken), len(turn))
        # the slot that was given longest ago is the next one
        turn = [*(s for s in turn if s != slots[b]), slots[b]]
    return slots


Keys = defaultdict[int, list[tuple[int, int]]]
"""By index in a list of operations: (bucket, micro-batch) pairs."""


def _spans(passes: Sequence[Op], chain: Chain) -> tuple[Keys, Keys]:
    """Returns two dicts, by index in `passes`: index of a pass -> the (bucket, micro-batch) pairs
    whose gradients it is the first to write; index of an operation -> the pairs that can be summed
    after it."""
    opened, summed = Keys(list), Keys(list)
    places = defaultdict[tuple[int, int], list[int]](list)
    for k, op in enumerate(passes):
        if op.kind in ADDS:
            places[op.stage, op.micro].append(k)
    for (_, micro), ks in places.items():
        uses, after = defaultdict[int, list[int]](list), NONE
        for k in ks:
            for b in chain.units[passes[k].at].buckets:
                uses[b].append(k)
        for b in sorted(uses, reverse=True):
            opened[uses[b][0]].append((b, micro))
            after = max(after, _behind(passes, uses[b][-1]))
            summed[after].append((b, micro))
    return opened, summed


def _behind(passes: Sequence[Op], k: int) -> int:
    """Returns the index of the operation after which a sum may start that needs the result of pass
    k: k, or k + 1 if that sends an output for which another rank waits."""
    return k + (k + 1 < len(passes) and passes[k + 1].kind in SENDS)
