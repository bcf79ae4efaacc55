"""Pipeline schedules: which rank computes which pass, and in which order.

    1f1b, 4 ranks, 4 micro-batches    rank 0   F0 F1 F2 F3 B0 B1 B2 B3
                                      rank 1   F0 F1 F2 B0 F3 B1 B2 B3
                                      rank 2   F0 F1 B0 F2 B1 F3 B2 B3
                                      rank 3   F0 B0 F1 B1 F2 B2 F3 B3

p ranks, m micro-batches and v stages a rank: the placement of a schedule says which rank has which
of the p*v stages. The functions here generate computation only: `lists/` adds messages and updates,
and proves the lists of the ranks.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.placement import Placement, in_v, round_robin
from nnmpi.schedules.v_shaped import dualpipe_v, v_half, zb_v

Compute: TypeAlias = Callable[[int, int, int], list[list[Op]]]
"""A function of p, m and v that returns the passes of each rank."""


def naive(p: int, m: int, v: int = 1) -> list[list[Op]]:
    """Without overlap: a micro-batch passes all stages and back before the next."""
    return [[Op(k, i, r) for i in range(m) for k in (Kind.F, Kind.B)] for r in range(p)]


def gpipe(p: int, m: int, v: int = 1) -> list[list[Op]]:
    """Returns the GPipe schedule (2019): each rank makes all forward passes, then all backward.

    Backward passes begin with the last micro-batch: its activations are still in memory then, so
    that with recomputation its forward pass is not made again.
    """
    forward = [(Kind.F, i) for i in range(m)]
    back = [(Kind.B, i) for i in reversed(range(m))]
    return [[Op(k, i, r) for k, i in forward + back] for r in range(p)]


def one_f_one_b(p: int, m: int, v: int = 1) -> list[list[Op]]:
    """The 1F1B schedule (PipeDream-flush, 2021): stage s starts with p-1-s forward passes, then
    alternates; it has no more micro-batches in progress than it needs to stay busy."""

    def rank(r: int) -> list[Op]:
        micro_batches = [(i, r) for i in range(m)]
        return _in_turn(micro_batches, micro_batches, ahead=p - 1 - r)

    return [rank(r) for r in range(p)]


def interleaved(p: int, m: int, v: int) -> list[list[Op]]:
    """1F1B over v stages a rank, in groups of p micro-batches (Megatron-LM, 2021).

    A rank runs a group through its first stage, then through its second, and so on; backward passes
    run in the same way from its last stage. The order is generated for whole groups, and passes of
    micro-batches that do not exist are removed.
    """
    groups = [range(g, g + p) for g in range(0, m, p)]

    def rank(r: int) -> list[Op]:
        stages = range(r, p * v, p)
        forward = [(i, s) for group in groups for s in stages for i in group]
        back = [(i, s) for group in groups for s in reversed(stages) for i in group]
        ops = _in_turn(forward, back, ahead=2 * (p - 1 - r) + (v - 1) * p)
        return [op for op in ops if op.micro < m]

    return [rank(r) for r in range(p)]


def zb_h1(p: int, m: int, v: int = 1) -> list[list[Op]]:
    """The ZB-H1 schedule: 1F1B whose weight gradients (W) fill time in which ranks would idle.

    Each backward pass is split into I, the gradient of the input, for which the previous stage
    waits, and W. Stage s runs the W of a micro-batch only after s more passes I (zero bubble,
    2024). Stage 0 needs no gradient of its input: its I takes no time.
    """
    return [_split(ops, delay=r) for r, ops in enumerate(one_f_one_b(p, m))]


def _in_turn(passes: list[tuple[int, int]], back: list[tuple[int, int]], ahead: int) -> list[Op]:
    """Returns a rank's operations: first `ahead` forward passes, then one forward and one backward
    pass in turn, and the backward passes left. Both lists have (micro-batch, stage) pairs."""
    forward = [Op(Kind.F, *at) for at in passes]
    ops = forward[:ahead]
    for k, at in enumerate(back):
        ops += forward[ahead + k : ahead + k + 1]
        ops.append(Op(Kind.B, *at))
    return ops


def _split(ops: list[Op], delay: int) -> list[Op]:
    """Divides each B into I, the gradient of the input, and W, the gradients of weights; the W of a
    micro-batch follows `delay` further passes I."""
    out: list[Op] = []
    owed: list[Op] = []
    for op in ops:
        if op.kind is not Kind.B:
            out.append(op)
            continue
        out.append(Op(Kind.I, *op[1:]))
        owed.append(Op(Kind.W, *op[1:]))
        if len(owed) > delay:
            out.append(owed.pop(0))
    return out + owed


class Schedule(NamedTuple):
    """The passes of each rank in order (`compute(p, m, v)`), and the bubble by the literature.

    bubble(p, m, v)   idle time over the time of computation, if F, I and W cost the same, B costs
                      as much as I and W, and messages are free; None: no formula for these numbers
    update_each       parameters are updated after each micro-batch instead of each step; lists come
                      from `lists/stream.py`, which produces the order of `compute` op by op
    place(p, v)       the rank of each stage
    """

    about: str
    compute: Compute
    bubble: Callable[[int, int, int], Fraction | None]
    formula: str  # of the bubble, as text
    holds: str = ""  # the condition for the formula
    virtual: bool = False  # allows any number of stages a rank
    update_each: bool = False
    stages: int = 1  # a rank, unless it is virtual
    place: Placement = round_robin

    def stages_a_rank(self, virtual: int) -> int:
        """Returns the stages of a rank if the user asks for `virtual`; many allow one."""
        return virtual if self.virtual else self.stages

    def check(self, p: int, m: int, v: int) -> None:
        """Raises ValueError unless p ranks, m micro-batches, v stages each are possible."""
        for name, value in (("stages", p), ("micro-batches", m), ("virtual stages", v)):
            if value < 1:
                raise ValueError(f"a pipeline needs at least 1 of {name}, got {value}")
        if v != self.stages_a_rank(v):
            has = "one stage" if self.stages == 1 else f"{self.stages} stages"
            raise ValueError(
                f"this schedule ({self.about}) has {has} a rank, got {v} virtual stages: "
                "leave them out or take --schedule interleaved"
            )
        place = self.place(p, v)
        if len(place) != p * v or {*place} != {*range(p)}:
            raise ValueError(
                f"this schedule ({self.about}) places stages on ranks "
                f"{', '.join(map(str, place))}: it needs {p * v} stages, and at least one on each "
                f"of ranks 0 to {p - 1}"
            )


SCHEDULES: dict[str, Schedule] = {
    "naive": Schedule(
        about="one micro-batch at a time",
        compute=naive,
        bubble=lambda p, m, v: Fraction(p - 1),
        formula="p-1",
    ),
    "gpipe": Schedule(
        about="all forward passes, then all backward passes",
        compute=gpipe,
        bubble=lambda p, m, v: Fraction(p - 1, m),
        formula="(p-1)/m",
    ),
    "1f1b": Schedule(
        about="one forward, one backward: as fast as gpipe, in less memory",
        compute=one_f_one_b,
        bubble=lambda p, m, v: Fraction(p - 1, m),
        formula="(p-1)/m",
    ),
    "interleaved": Schedule(
        about="1f1b over several smaller stages a rank: less idle time, more messages",
        compute=interleaved,
        bubble=lambda p, m, v: Fraction(p - 1, v * m) if m % p == 0 else None,
        formula="(p-1)/(V m)",
        holds="where p divides m",
        virtual=True,
    ),
    "zb-h1": Schedule(
        about="1f1b with gradients of weights computed where a rank would be idle",
        compute=zb_h1,
        bubble=lambda p, m, v: Fraction(p - 1, 3 * m) if m >= p else None,
        formula="(p-1)/(3m)",
        holds="where m >= p",
    ),
    "zb-v": Schedule(
        about="zero bubble in a V: gradients of weights fill idle time, in the memory of 1f1b",
        compute=zb_v,
        bubble=lambda p, m, v: Fraction(p - 1, 6 * m) if m >= 2 * p - 1 else None,
        formula="(p-1)/(6m)",
        holds="where m >= 2p-1",
        stages=2,
        place=in_v,
    ),
    "v-half": Schedule(
        about="a V in which micro-batches wait little: half the memory of 1f1b",
        compute=v_half,
        bubble=lambda p, m, v: Fraction((7 * p - 8) // 2, 6 * m) if m > p > 1 else None,
        formula="floor(7p/2-4)/(6m)",
        holds="where m > p > 1",
        stages=2,
        place=in_v,
    ),
    "dualpipe-v": Schedule(
        about="a V of forward and backward passes in pairs",
        compute=dualpipe_v,
        bubble=lambda p, m, v: Fraction(p - 1, 6 * m) if m >= 2 * p else None,
        formula="(p-1)/(6m)",
        holds="where m >= 2p",
        stages=2,
        place=in_v,
    ),
    "pipedream": Schedule(
        about="1f1b that drains once an epoch: each micro-batch is a step, on older weights",
        compute=one_f_one_b,
        bubble=lambda p, m, v: Fraction(p - 1, m),
        formula="(p-1)/m",
        update_each=True,
    ),
}
