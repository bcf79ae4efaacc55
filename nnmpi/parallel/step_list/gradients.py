"""Sums of gradients: when a bucket's sum starts, and in which memory its gradients are.

    ZeRO 0, 1    B2.0 B1.0 B2.1 SUM2 B1.1 SUM1 FINISH2 FINISH1
    ZeRO 2, 3    OPEN2.0@0 B2.0 SUM2.0@0  OPEN1.0@1 B1.0 SUM1.0@1  FINISH2.0@0 OPEN2.1@0 B2.1 ...

Sums start in the order of falling buckets, in which gradients become final, on every rank alike.
Without overlap a sum is waited for before anything else begins, except for that of a parameter
which other stages have too: the ranks of two stages start these sums in different orders, and would
wait in a circle.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from nnmpi.parallel.step_list.chain import Chain
from nnmpi.parallel.step_list.op import ADDS, NONE, Kind, Op


def with_sums(ops: Iterable[Op], chain: Chain, overlap: bool = True) -> Iterator[Op]:
    """Yields a list in which each bucket is summed once, after the last pass that adds to it, or
    without overlap after all passes."""
    passes = [*ops]
    last = {op.at: k for k, op in enumerate(passes) if op.kind in ADDS}
    sums, after = defaultdict[int, list[Op]](list), passes.index(Op(Kind.NOTE))
    for b in reversed(range(len(chain.buckets))):
        after = max([after, *(last[u] for u in chain.users[b] if u in last)])
        sums[after].append(Op(Kind.SUM, b))
    for k, op in enumerate(passes):
        yield op
        if overlap:
            yield from sums[k]
    late = list[Op]()
    for b in reversed(range(len(chain.buckets))):
        if not overlap:
            yield Op(Kind.SUM, b)
        if overlap or b in chain.tied:
            late.append(Op(Kind.FINISH, b))
        else:
            yield Op(Kind.FINISH, b)
    yield from late


def with_scatters(ops: Iterable[Op], chain: Chain, overlap: bool = True) -> Iterator[Op]:
    """Yields a list in which each backward pass of a stage scatters the sums of its buckets.

    One slot more is taken than there are buckets with open gradients at a time, so that one sum
    goes on beside a pass. A slot is free again after FINISH, which comes when another bucket needs
    it.
    """
    passes = [*ops]
    opened, summed = _spans(passes, chain)
    free = [*range(1 + _most_open(opened, summed, len(passes)))]
    at, flying = dict[tuple[int, int], int](), list[Op]()

    def finish() -> Op:
        op = flying.pop(0)
        free.append(op.slot)
        return op._replace(kind=Kind.FINISH)

    for k, op in enumerate(passes):
        for key in opened[k]:
            if not free:
                yield finish()
            at[key] = free.pop(0)
            yield Op(Kind.OPEN, *key, at[key])
        yield op
        for key in summed[k]:
            flying.append(Op(Kind.SUM, *key, at.pop(key)))
            yield flying[-1]
            if not overlap:
                yield finish()
    while flying:
        yield finish()


Keys = defaultdict[int, list[tuple[int, int]]]
"""Buckets and micro-batches, by the place in a list."""


def _spans(passes: Sequence[Op], chain: Chain) -> tuple[Keys, Keys]:
    """Returns before which pass the gradients of a bucket are opened, and after which they are
    summed, for each micro-batch and stage."""
    opened, summed = Keys(list), Keys(list)
    places = defaultdict[tuple[int, int], list[int]](list)
    for k, op in enumerate(passes):
        if op.kind in ADDS:
            places[op.stage, op.micro].append(k)
    for (_, micro), ks in places.items():
        used = {b for k in ks for b in chain.units[passes[k].at].buckets}
        after = NONE
        for b in sorted(used, reverse=True):
            uses = [k for k in ks if b in chain.units[passes[k].at].buckets]
            opened[uses[0]].append((b, micro))
            after = max(after, uses[-1])
            summed[after].append((b, micro))
    return opened, summed


def _most_open(opened: Keys, summed: Keys, passes: int) -> int:
    """Returns how many buckets have open gradients at a time, at most."""
    most = open_buckets = 0
    for k in range(passes):
        open_buckets += len(opened[k])
        most = max(most, open_buckets)
        open_buckets -= len(summed[k])
    return most
