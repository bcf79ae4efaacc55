"""Simulates pipelines: executes the lists of all ranks with a clock for each rank. A message takes
`send` and occupies neither rank; between two stages of one rank there is none. The unit of time is
the caller's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nnmpi.addons.simulator.clock import FREE, Cost, carried_out
from nnmpi.addons.simulator.drawing.timeline import Span, Timeline
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import PASSES, SENDS, Kind, Op


def stage_times(forward: float, input_gradient: float, weight_gradient: float) -> dict[Kind, float]:
    """Returns the time of each kind of pass of a stage: B takes as long as I and W together."""
    i, w = input_gradient, weight_gradient
    return {Kind.F: forward, Kind.RECOMPUTE: forward, Kind.B: i + w, Kind.I: i, Kind.W: w}


class Costs(NamedTuple):
    """The times of all operations of a pipeline: of each kind of pass, by stage.

    send    the time of a message between ranks, however many are in flight
    update  the time of an update
    links   a dict: (SEND_F or SEND_B, stage) -> the time of a message of the stage. These messages
            queue up on their link; others take `send`
    """

    stages: Sequence[Mapping[Kind, float]]
    send: float = 0
    update: float = 0
    links: Mapping[tuple[Kind, int], float] = {}

    @classmethod
    def uniform(
        cls, p: int, v: int = 1, forward: float = 1, backward: float = 2, send: float = 0
    ) -> "Costs":
        """Returns the costs of equal stages. `forward` and `backward` are the times of the passes
        of a rank through all of its v stages, `send` that of a message."""
        half = backward / 2 / v
        return cls([stage_times(forward / v, half, half)] * (p * v), send)

    def of(self, r: int, op: Op) -> Cost:
        """Returns the cost of an operation, on any rank r."""
        if op.kind in SENDS:
            link = op.kind, op.stage
            return Cost(self.links.get(link, self.send), link if link in self.links else FREE)
        seconds = self.stages[op.stage] if op.kind in PASSES else {Kind.APPLY: self.update}
        return Cost(seconds.get(op.kind, 0))


class Simulation(NamedTuple):
    """The result of a simulation: the timeline of all ranks, and figures computed from it."""

    timeline: Timeline
    makespan: float
    busy: list[float]  # by rank: the time of its ops
    live: list[int]  # by rank: peak number of micro-batches held, counted for each of its stages
    memory: list[float]  # by rank: peak of activations held

    @property
    def bubble(self) -> float:
        """The idle time of all ranks divided by their time of computation."""
        busy = sum(self.busy)
        return (len(self.busy) * self.makespan - busy) / busy if busy else 0


def simulate(
    lists: Sequence[StepList],
    costs: Costs,
    activation: Sequence[float] | None = None,
    inputs: Sequence[float] | None = None,
) -> Simulation:
    """Simulates the lists of all ranks, in which whole stages are units; raises ScheduleError if
    they deadlock.

    activation   the size of the activations that each stage keeps of a micro-batch until its
                 backward pass; by default they add up to 1 on each rank
    inputs       the size of the input of each stage, which alone is kept until a forward pass is
                 recomputed; 0 by default
    """
    spans = tuple(run(lists, costs))
    ranks, stages = len(lists), len(costs.stages)
    sizes = [ranks / stages] * stages if activation is None else activation
    busy: list[float] = [0] * ranks
    for span in spans:
        busy[span.rank] += span.end - span.start
    return Simulation(
        timeline=Timeline(spans, ranks),
        makespan=max((span.end for span in spans), default=0),
        busy=busy,
        live=[int(_peak(step.passes, [1] * stages, [1] * stages)) for step in lists],
        memory=[_peak(step.passes, sizes, inputs or [0] * stages) for step in lists],
    )


def run(lists: Sequence[StepList], costs: Costs) -> Iterator[Span]:
    """Simulates lists: each operation as early as messages allow; yields spans."""
    for r, op, _, start, end in carried_out(lists, costs.of):
        if op.kind is Kind.APPLY or (end > start and op.kind in PASSES):
            yield Span(r, op.kind.value, op.micro, op.stage, start, end)


def _peak(ops: Sequence[Op], activation: Sequence[float], inputs: Sequence[float]) -> float:
    """Returns the peak size of the activations that a rank keeps. A stage keeps those of a
    micro-batch from F to B or W or, if a RECOMPUTE is to come, only its input until then."""
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
