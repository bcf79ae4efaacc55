"""Adds the gathers of parameters to a rank's list of operations under ZeRO.

    ZeRO 1, 2    WAIT0@0 F0.0 WAIT1@1 F1.0 ... APPLY GATHER0@0 GATHER1@1    each bucket has a slot
    ZeRO 3       WAIT0@0 GATHER1@1 F0.0 WAIT1@1 F1.0 ... APPLY GATHER0@0    they share slots

GATHER1@1 starts to gather bucket 1 into slot 1, and WAIT1@1 waits for it. A list ends with the
gathers that the next step needs first."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.step_list.chain import gathers_for_use
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import NONE, PASSES, Kind, Op

SLOTS = 2
"""The fewest slots: one bucket is in use while the next is gathered."""


def with_values(a: Arrangement, step: StepList) -> StepList:
    """Returns the list with gathers of parameters, with ZeRO."""
    slots = value_slots(a, step.chain)
    if not slots:
        return step
    ops, begins = (*with_gathers(step.ops, step.chain, slots),), first_buckets(step.chain, slots)
    return replace(step, ops=ops, slots=slots, begins=begins)


def value_slots(a: Arrangement, chain: Chain) -> dict[int, int]:
    """Returns a dict: bucket -> the slot of its parameters; {} without ZeRO. With ZeRO 1 and 2 each
    bucket has memory of its own. With ZeRO 3 buckets share slots, unless `forward` may choose
    layers by values: then ranks may use different buckets."""
    if not a.store.zero:
        return {}
    return shared_slots(chain) if gathers_for_use(a) else {b: b for b in range(len(chain.lengths))}


def shared_slots(chain: Chain) -> dict[int, int]:
    """Returns a dict: bucket -> the slot that it shares in turn with others (ZeRO 3): always the
    same, since backward passes keep views of it. Buckets that one unit reads have different slots;
    so have those of neighbouring units, if there are enough."""
    slots, lengths = dict[int, int](), dict.fromkeys(range(SLOTS), 0)
    read = [{*unit.buckets, *unit.repeated} for unit in chain.units]
    for b in range(len(chain.lengths)):
        beside = {o for of_unit in read for o in of_unit if b in of_unit}
        near = {
            o
            for u in chain.users[b]
            for v in (u - 1, u + 1)
            if 0 <= v < len(chain.units)
            for o in chain.units[v].buckets
        }
        taken = {slots[o] for o in beside if o in slots}
        avoided = taken | {slots[o] for o in near if o in slots}
        wished = [(b + k) % len(lengths) for k in range(len(lengths))]
        free = [s for s in wished if s not in avoided] or [s for s in wished if s not in taken]
        length = chain.lengths[b]
        slots[b] = min(free or [len(lengths)], key=lambda s: max(length - lengths.get(s, 0), 0))
        lengths[slots[b]] = max(length, lengths.get(slots[b], 0))
    return slots


def first_buckets(chain: Chain, slots: Mapping[int, int]) -> tuple[int, ...]:
    """Returns the buckets whose all-gathers are in progress when a step begins: those that the
    first forward pass reads; all, if each has memory of its own."""
    are_shared = len({*slots.values()}) < len(slots)
    return chain.units[0].buckets if are_shared else (*slots,)


def with_gathers(ops: Iterable[Op], chain: Chain, slots: Mapping[int, int]) -> Iterator[Op]:
    """Yields a rank's operations with GATHER and WAIT added, so that each pass finds its buckets in
    their slots. A gather starts before the pass that precedes the one that reads the bucket, or, if
    the preceding pass uses the same slot, after it."""
    listed, first = [*ops], first_buckets(chain, slots)
    passes = [op for op in listed if op.kind in PASSES]
    held, moving = {slots[b]: b for b in first}, {*first}

    def missing(op: Op, taken: Iterable[int] = ()) -> Iterator[Op]:
        for b in chain.read_by(op):
            if held.get(slots[b], NONE) != b and slots[b] not in taken:
                moving.add(b)
                held[slots[b]] = b
                yield Op(Kind.GATHER, at=b, slot=slots[b])

    def arriving(buckets: Iterable[int]) -> Iterator[Op]:
        for b in buckets:
            if b in moving:
                moving.remove(b)
                yield Op(Kind.WAIT, at=b, slot=slots[b])

    k = 0
    for op in listed:
        if op.kind in PASSES:
            yield from missing(op)
            yield from arriving(chain.read_by(op))
            k += 1
            if k < len(passes):
                yield from missing(passes[k], {slots[b] for b in chain.read_by(op)})
        yield op
        if op.kind is Kind.APPLY:
            held.clear()
    yield from (Op(Kind.GATHER, at=b, slot=slots[b]) for b in first if held.get(slots[b]) != b)
