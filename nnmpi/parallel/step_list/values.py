"""Gathers of values: which bucket is in which slot, and when it is gathered and waited for.

    ZeRO 1, 2    WAIT0 F0.0 WAIT1 F1.0 ... APPLY GATHER0 GATHER1       each bucket has memory of its
                                                                       own: slot b
    ZeRO 3       WAIT0@0 GATHER1@1 F0.0 WAIT1@1 F1.0 ... APPLY GATHER0@0

A step ends with the gathers with which the next one begins.
"""

from collections.abc import Iterable, Iterator, Mapping

from nnmpi.parallel.arrangement.program import SLOTS
from nnmpi.parallel.step_list.chain import Chain
from nnmpi.parallel.step_list.op import NONE, PASSES, Kind, Op


def whole_values(chain: Chain) -> dict[int, int]:
    """Returns the slot of each bucket where all values are on each rank."""
    return {b: b for b in range(len(chain.buckets))}


def value_slots(chain: Chain) -> dict[int, int]:
    """Returns the slot of each bucket with ZeRO 3, which is always the same, since backward passes
    keep arrays in it.

    Buckets of one unit have different slots, and those of neighbouring units too where SLOTS
    allow it.
    """
    slots = dict[int, int]()
    for b in range(len(chain.buckets)):
        beside = {o for u in chain.users[b] for o in chain.units[u].buckets}
        near = {
            o
            for u in chain.users[b]
            for v in (u - 1, u + 1)
            if 0 <= v < len(chain.units)
            for o in chain.units[v].buckets
        }
        taken = {slots[o] for o in beside if o in slots}
        avoided = taken | {slots[o] for o in near if o in slots}
        wished = [(b + k) % SLOTS for k in range(SLOTS)]
        free = [s for s in wished if s not in avoided] or [s for s in wished if s not in taken]
        slots[b] = free[0] if free else max([SLOTS - 1, *slots.values()]) + 1
    return slots


def first_buckets(ops: Iterable[Op], chain: Chain) -> tuple[int, ...]:
    """Returns the buckets of the first pass of a list."""
    return next((chain.units[op.at].buckets for op in ops if op.kind in PASSES), ())


def with_new_values(ops: Iterable[Op], chain: Chain) -> Iterator[Op]:
    """Yields the list of ZeRO 1 or 2: after the update all buckets are gathered, in the order in
    which the next step waits for them."""
    due = {*range(len(chain.buckets))}
    for op in ops:
        # a bucket that no pass uses is waited for by its sum, which may run on the same Comm
        needed = chain.units[op.at].buckets if op.kind in PASSES else ()
        for b in (op.at,) if op.kind is Kind.SUM else needed:
            if b in due:
                due.remove(b)
                yield Op(Kind.WAIT, b, slot=b)
        yield op
        if op.kind is Kind.APPLY:
            yield from (Op(Kind.GATHER, b, slot=b) for b in range(len(chain.buckets)))


def with_gathers(ops: Iterable[Op], chain: Chain, slots: Mapping[int, int]) -> Iterator[Op]:
    """Yields the list of ZeRO 3: each pass finds its buckets in their slots; they are gathered
    before the pass in front, where it does not use the slot."""
    listed = [*ops]
    passes, first = [op for op in listed if op.kind in PASSES], first_buckets(listed, chain)
    held, moving = {slots[b]: b for b in first}, {*first}

    def missing(op: Op, taken: Iterable[int] = ()) -> Iterator[Op]:
        for b in chain.units[op.at].buckets:
            if held.get(slots[b], NONE) != b and slots[b] not in taken:
                moving.add(b)
                held[slots[b]] = b
                yield Op(Kind.GATHER, b, slot=slots[b])

    k = 0
    for op in listed:
        if op.kind in PASSES:
            yield from missing(op)
            for b in chain.units[op.at].buckets:
                if b in moving:
                    moving.remove(b)
                    yield Op(Kind.WAIT, b, slot=slots[b])
            taken = {slots[b] for b in chain.units[op.at].buckets}
            k += 1
            if k < len(passes):
                yield from missing(passes[k], taken)
        yield op
        if op.kind is Kind.APPLY:
            yield from (Op(Kind.GATHER, b, slot=slots[b]) for b in first)
