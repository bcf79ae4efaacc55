"""Returns the operations that a rank's executor carries out in a step and in an evaluation: a list
of units (parts of stages), or for some strategies a program of whole stages."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.arrangement import program
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.step_list.chain import Chain, chain_of, gathers_for_use
from nnmpi.parallel.step_list.op import NONE, Kind, Op
from nnmpi.parallel.step_list.step import evaluation, step_list
from nnmpi.schedules import op as schedules
from nnmpi.schedules.lowering import boundary

LISTED = ("replicas", "pipeline", "averaging", "reproducible")
"""The strategies whose steps are lists of units. Others carry out programs of whole stages, each of
which is one unit: PipeDream, whose batches overlap, so that no list has one step alone; and workers
of servers, which send a gradient when all of it is there."""


class StageUnits(NamedTuple):
    """The units of a stage: its parts, usually layers, between which a forward or backward pass can
    stop.

    numbers     their numbers in the list of operations
    parameters  for each unit, those that no earlier unit of the stage uses: it is the first to read
                them, and the last to add to their gradients
    absent      for each unit, if parameters are gathered before each use (ZeRO 3): those of the
                stage that it does not use, which may not be in memory while it runs
    unrepeated  for each unit, those in `absent` that may not be in memory in its backward pass
                either: this pass may recompute other units, which needs their parameters
    """

    numbers: range
    parameters: Sequence[frozenset[Parameter]]
    absent: Sequence[frozenset[Parameter]] = ()
    unrepeated: Sequence[frozenset[Parameter]] = ()


def stage_units(
    a: Arrangement, rank: int, parameters: Sequence[Parameter]
) -> dict[int, StageUnits]:
    """Returns a dict: stage of a rank -> its units (the parts, usually layers, between which a pass
    can stop). `parameters` are the trained parameters of the rank."""
    if a.strategy.name not in LISTED:
        stages = a.division.of_rank(a.mesh.coordinates(rank)["pp"])
        return {s: StageUnits(range(k, k + 1), [frozenset()]) for k, s in enumerate(stages)}
    chain, held = chain_of(a, rank), a.model_on(rank)
    of_variable = {v.variable: p for v, p in zip(held.trained, parameters, strict=True)}
    members = [[of_variable[v.variable] for v in inside] for inside in held.inside().values()]
    by_stage = dict[int, StageUnits]()
    for stage, numbers in chain.of_stage.items():
        first = [min((u for u in users if u in numbers), default=NONE) for users in chain.users]
        of_unit = [
            frozenset(p for b, inside in enumerate(members) if first[b] == u for p in inside)
            for u in numbers
        ]
        others = _others(chain, numbers, members) if gathers_for_use(a) else ()
        by_stage[stage] = StageUnits(numbers, of_unit, *others)
    return by_stage


def _others(
    chain: Chain, numbers: range, members: Sequence[Sequence[Parameter]]
) -> tuple[Sequence[frozenset[Parameter]], Sequence[frozenset[Parameter]]]:
    """Returns the fields `absent` and `unrepeated` of the StageUnits of a stage: for each unit
    (part, usually a layer), the parameters that may not be in memory while it runs, and those of
    them that may not be there in its backward pass either. `numbers` are the numbers of the stage's
    units, and members[b] the parameters in bucket b."""
    of_stage = {b for u in numbers for b in chain.units[u].buckets}
    absent, unrepeated = list[frozenset[Parameter]](), list[frozenset[Parameter]]()
    for unit in (chain.units[u] for u in numbers):
        buckets = of_stage.difference(unit.buckets)
        absent.append(frozenset(p for b in buckets for p in members[b]))
        buckets -= {*unit.repeated}
        unrepeated.append(frozenset(p for b in buckets for p in members[b]))
    return absent, unrepeated


def step_ops(a: Arrangement, rank: int, micro: int) -> Sequence[Op]:
    """Returns the operations that a rank's executor carries out in a step of `micro` micro-batches,
    in order."""
    if a.strategy.name in LISTED:
        return step_list(a, rank, micro).ops
    return [*of_program(a, rank, program.ops(a, rank, micro))]


def evaluation_ops(a: Arrangement, rank: int, micro: int) -> Sequence[Op]:
    """Returns the operations that a rank's executor carries out to evaluate a batch in `micro`
    micro-batches, in order."""
    if a.strategy.name in LISTED:
        return evaluation(a, rank, micro)
    return [*of_program(a, rank, program.forward_ops(a, rank, micro))]


def of_program(a: Arrangement, rank: int, ops: Iterable[schedules.Op]) -> Iterator[Op]:
    """Converts a program, whose operations are passes and messages of whole stages, to the
    operations that the executor takes; each stage becomes one unit, a part whose pass is a single
    operation. If the parameters are updated once for all micro-batches, FINISH (wait for sums) and
    AGREE are added before the update."""
    stages = [*a.division.of_rank(a.mesh.coordinates(rank)["pp"])]
    for op in ops:
        kind, at, stage = op.kind, NONE, NONE
        if op.kind in schedules.MESSAGES:
            at, stage = boundary(op) + 1, op.stage
        elif op.micro != NONE and kind is not Kind.APPLY:
            at, stage = stages.index(op.stage), op.stage
        if kind is Kind.APPLY and op.micro == NONE:
            yield from map(Op, (Kind.FINISH, Kind.AGREE))
        yield Op(kind, at, op.micro, peer=op.peer, stage=stage)
