"""The simulation of a pipeline: the programs that ranks run, with a clock for each rank.

Schedules are drawn, and steps of layouts priced, by the same clocks. A message takes `send` and
occupies neither rank; between two stages of one rank it takes no time. The unit of time is the
caller's.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nnmpi.schedules.lowering import RECEIVES, message
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.proof import channel, in_order
from nnmpi.sim.drawing.timeline import Span, Timeline


def stage_times(forward: float, input_gradient: float, weight_gradient: float) -> dict[Kind, float]:
    """How long each pass of a stage takes for one micro-batch: B takes as long as I and W."""
    i, w = input_gradient, weight_gradient
    return {Kind.F: forward, Kind.RECOMPUTE: forward, Kind.B: i + w, Kind.I: i, Kind.W: w}


class Costs(NamedTuple):
    """How long everything takes: each kind of pass of each stage of the whole pipeline.

    send    a message between ranks, however many are under way
    links   those of a stage, by SEND_F or SEND_B and the stage: they follow each other on a link
    """

    stages: Sequence[Mapping[Kind, float]]
    send: float = 0
    update: float = 0
    links: Mapping[tuple[Kind, int], float] = {}

    @classmethod
    def uniform(
        cls, p: int, v: int = 1, forward: float = 1, backward: float = 2, send: float = 0
    ) -> "Costs":
        """All stages alike: forward and backward are of a rank, which has v of them."""
        half = backward / 2 / v
        return cls([stage_times(forward / v, half, half)] * (p * v), send)

    def of(self, op: Op) -> float:
        """How long an op occupies its rank."""
        return self.update if op.kind is Kind.UPDATE else self.stages[op.stage].get(op.kind, 0)


class Simulation(NamedTuple):
    """The ops of ranks, and when they were made."""

    timeline: Timeline
    makespan: float
    busy: list[float]  # of each rank: the time of its ops
    live: list[int]  # of each rank: the most micro-batches held, counted for each of its stages
    memory: list[float]  # of each rank: the most activations held

    @property
    def bubble(self) -> float:
        """Idle time over the time of computation, of all ranks."""
        busy = sum(self.busy)
        return (len(self.busy) * self.makespan - busy) / busy if busy else 0


def simulate(
    programs: Sequence[Sequence[Op]],
    costs: Costs,
    activation: Sequence[float] | None = None,
    inputs: Sequence[float] | None = None,
) -> Simulation:
    """Run the programs of all ranks; raises ScheduleError if they deadlock.

    activation   what each stage keeps of a micro-batch until its backward pass; if it is not given,
                 all stages of a rank keep 1 together.
    inputs       what of it is the input of the stage: all that is kept until a forward pass that
                 runs again; if it is not given, 0
    """
    spans = tuple(run(programs, costs))
    ranks, stages = len(programs), len(costs.stages)
    sizes = [ranks / stages] * stages if activation is None else activation
    one_each = [1] * stages
    busy: list[float] = [0] * ranks
    for span in spans:
        busy[span.rank] += span.end - span.start
    return Simulation(
        timeline=Timeline(spans, ranks),
        makespan=max((span.end for span in spans), default=0),
        busy=busy,
        live=[int(_peak(ops, one_each, one_each)) for ops in programs],
        memory=[_peak(ops, sizes, inputs or [0] * stages) for ops in programs],
    )


def run(programs: Sequence[Sequence[Op]], costs: Costs) -> Iterator[Span]:
    """The computations of ranks, each op as early as the program and messages let it."""
    ranks, stages = len(programs), len(costs.stages)
    clocks: list[float] = [0] * ranks
    arrivals: dict[tuple[tuple[bool, int], int], float] = {}  # by channel and micro-batch
    free = defaultdict[tuple[bool, int], float](float)  # since when a channel is
    for r, op in in_order(programs, stages):
        awaited = message(op, RECEIVES, ranks, stages)
        start = max(clocks[r], arrivals[channel(awaited), op.micro]) if awaited else clocks[r]
        end = start + costs.of(op)
        if end > start or op.kind is Kind.UPDATE:
            yield Span(r, op.kind.value, op.micro, op.stage, start, end)
        clocks[r] = end
        if op.kind in (Kind.SEND_F, Kind.SEND_B):
            at, taken = channel(op), costs.send if op.peer != r else 0
            if op.peer != r and (op.kind, op.stage) in costs.links:
                taken = costs.links[op.kind, op.stage]
                end = max(end, free[at])
                free[at] = end + taken
            arrivals[at, op.micro] = end + taken


def _peak(ops: Sequence[Op], activation: Sequence[float], inputs: Sequence[float]) -> float:
    """The most activations held: from F to B or W, before a RECOMPUTE only the input."""
    again = {(op.micro, op.stage) for op in ops if op.kind is Kind.RECOMPUTE}
    held = most = 0.0
    for op in ops:
        if op.kind is Kind.F:
            kept = inputs if (op.micro, op.stage) in again else activation
            held += kept[op.stage]
        elif op.kind is Kind.RECOMPUTE:
            held += activation[op.stage] - inputs[op.stage]
        elif op.kind in (Kind.B, Kind.W):
            held -= activation[op.stage]
        most = max(most, held)
    return most
