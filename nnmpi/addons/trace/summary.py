"""Joins the traced operations of all ranks in one table, divides each wait into two parts (until
the other ranks are ready, and the communication itself), and sums each rank's seconds.

    receiver    began ├─── waiting ───┤── communicating ──┤ ended
    sender                            └ SEND started              a message
    others                            └ the last rank arrived     a sum, an agreement, a barrier

If gradients are summed in the background of a backward pass, only the time in which a rank waits
for the sum is counted.

The bubble is idle time over the time that ranks compute, measured and simulated. Both count from
the first forward to the last backward pass of a step, over all ranks of a pipeline:

    bubble = (ranks * makespan - computing) / computing

If steps overlap (pipedream), an epoch is counted as one step, and its updates as computing.

The simulation runs the operations of the schedule with the mean time that each stage took for each
kind of pass, and the median time of the messages whose receivers were already waiting.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.addons.simulator.drawing.timeline import Span
from nnmpi.addons.simulator.pipeline import Costs, Simulation, simulate
from nnmpi.addons.trace.recording import (
    COMPUTE,
    ENTRY,
    EVALUATION,
    EVENT_KINDS,
    PASSES,
    WAITS,
    which,
)
from nnmpi.options.config import Config
from nnmpi.parallel.mesh import MODEL, REPLICAS, Mesh
from nnmpi.schedules.find import find
from nnmpi.schedules.lists.of_schedule import lists
from nnmpi.schedules.op import Kind

MESSAGES = {"wait F": ("SEND_F", -1), "wait B": ("SEND_B", +1)}
"""For each wait for a message, the operation that sends it, and its stage minus the receiver's."""

COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "sums": REPLICAS,
    "statistics": REPLICAS,
    "settle": REPLICAS,
    "agree": MODEL,
    "tensor": ("tp",),
}
"""For each wait for a collective, the axes of the mesh along which its ranks lie."""

MEET = tuple(wait for wait in WAITS if wait != "gather")
"""Waits for ranks to arrive. A gather began earlier on all ranks: it waits for messages only."""

TRACED = np.dtype(
    [
        *((name, ENTRY[name]) for name in ENTRY.names or ()),
        ("rank", "i4"),
        ("net", "f8"),  # seconds, without the waits within an operation
        ("arrived", "f8"),  # of a wait: when the sender or the last rank was ready
        ("sent", "i8"),  # of a wait for a message: the row of its SEND, or -1
    ]
)


def traced(gathered: Sequence[np.ndarray], mesh: Mesh) -> np.ndarray:
    """Returns one table of the operations and waits of all ranks, rank by rank, from the recorded
    events of each, with times on the clock of rank 0."""
    events = np.concatenate(gathered)
    table = np.empty(len(events), TRACED)
    for name in ENTRY.names or ():
        table[name] = events[name]
    table["rank"] = np.repeat(np.arange(len(gathered)), [*map(len, gathered)])
    table["net"] = _net(events)
    table["arrived"] = np.where(which(events, *MEET), events["ended"], events["began"])
    table["sent"] = -1
    for wait, (send, away) in MESSAGES.items():
        _match(table, _group_of(len(gathered), mesh, *MODEL), wait, send, away)
    for kind, axes in COLLECTIVES.items():
        _meet(table, _group_of(len(gathered), mesh, *axes), kind)
    return table


def _net(events: np.ndarray) -> np.ndarray:
    """Returns the seconds of each event without its waits, which precede it in `events`."""
    seconds: np.ndarray = events["ended"] - events["began"]
    inside = which(events, *WAITS)
    operations, waits = np.flatnonzero(~inside), np.flatnonzero(inside)
    if operations.size:
        np.subtract.at(seconds, operations[np.searchsorted(operations, waits)], seconds[waits])
    return seconds


def _group_of(ranks: int, mesh: Mesh, *axes: str) -> np.ndarray:
    """Returns for each of `ranks` ranks the first of its group, of ranks that differ only along
    these axes. A rank outside of the mesh, such as a parameter server, is a group by itself."""
    first = np.arange(ranks)
    for group in mesh.groups(*axes):
        first[list(group)] = group[0]
    return first


def _match(table: np.ndarray, pipeline: np.ndarray, wait: str, send: str, away: int) -> None:
    """Finds, for each wait for a message, the send that it waits for; writes the row of the send
    and the time when it began into the table.

    pipeline     the pipeline of each rank, by the number of its first rank
    away         the stage of the sender minus the stage of the receiver

    A send that seems to have begun after the wait had ended is ignored: the clocks of hosts drift.
    """

    def keyed(kind: str, away: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields for each event of a kind the key (pipeline, step, micro-batch, stage of the
        sender) and the number of its row."""
        at = np.flatnonzero(which(table, kind) & (table["step"] >= 0))
        rows = table[at]
        stages = rows["stage"] + np.int64(away)
        columns = pipeline[rows["rank"]], rows["step"], rows["micro"], stages
        return zip(zip(*(c.tolist() for c in columns), strict=True), at.tolist(), strict=True)

    sends = dict(keyed(send, 0))
    for key, i in keyed(wait, away):
        j = sends.get(key, -1)
        if j >= 0 and table["began"][j] <= table["ended"][i]:
            table["sent"][i] = j
            table["arrived"][i] = max(table["began"][j], table["began"][i])


def _meet(table: np.ndarray, group: np.ndarray, kind: str) -> None:
    """Finds, for each wait of one kind of collective, when the last rank of the group started to
    wait. The k-th wait of a step is the same collective on all ranks of a group."""
    at = np.flatnonzero(which(table, kind) & (table["step"] >= 0))
    waits = table[at]
    steps = _pairs(waits["rank"], waits["step"])  # in ascending order, so searchsorted finds firsts
    k = np.arange(len(at)) - np.searchsorted(steps, steps)
    _, step = np.unique(_pairs(group[waits["rank"]], waits["step"]), return_inverse=True)
    _, operation = np.unique(_pairs(step, k), return_inverse=True)
    last = np.full(len(at), -np.inf)
    np.maximum.at(last, operation, waits["began"])
    table["arrived"][at] = np.minimum(last[operation], waits["ended"])


def _pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns each pair (a[i], b[i]) of integers below 2^31 as one integer, to search."""
    pairs: np.ndarray = a.astype(np.int64) << 32 | b
    return pairs


# ---- seconds, and the bubble


SENDS = tuple(kind for kind in EVENT_KINDS if kind not in (*COMPUTE, *WAITS, "evaluate"))


class Seconds(NamedTuple):
    """The seconds that a rank spent on each activity, in its recorded steps without evaluation."""

    computing: float
    communicating: float  # while nothing was computed
    waiting: float  # for ranks that were not ready yet
    other: float  # such as gathering batches


def facts(table: np.ndarray) -> dict[str, Any]:
    """Returns the number of recorded steps, and each rank's Seconds, as fields of the last
    event."""
    in_steps = table[table["step"] != EVALUATION]
    rows = {}
    for rank in np.unique(in_steps["rank"]).tolist():
        spent = seconds(table[table["rank"] == rank])._asdict()
        rows[str(rank)] = {name: round(x, 6) for name, x in spent.items()}
    return {"steps": len(np.unique(in_steps["step"])), "ranks": rows}


def seconds(rows: np.ndarray) -> Seconds:
    """Returns how a rank spent its time, from all of its rows, of which one is within a step."""
    in_steps = np.flatnonzero(rows["step"] != EVALUATION)
    first, last = in_steps[[0, -1]]
    span = rows["ended"][last] - rows["began"][in_steps].min()
    between = rows[first:last]
    evaluations = between[which(between, "evaluate")]
    waits = rows[which(rows, *WAITS) & (rows["step"] != EVALUATION)]
    computing = rows["net"][which(rows, *COMPUTE)].sum()
    waiting = (waits["arrived"] - waits["began"]).sum()
    communicating = (waits["ended"] - waits["arrived"]).sum()
    communicating += rows["net"][which(rows, *SENDS)].sum()
    other = span - (evaluations["ended"] - evaluations["began"]).sum()
    other -= computing + communicating + waiting
    return Seconds(*map(float, (computing, communicating, waiting, other)))


Bubble: TypeAlias = dict[str, dict[str, float]]


def bubble(table: np.ndarray, mesh: Mesh, config: Config) -> tuple[Bubble, list[Span]]:
    """Returns the measured and simulated bubble of a run's pipelines, and that by the formula of
    the schedule for equal stages, and the operations of a simulated step, to be drawn. Both are
    empty without a pipeline or a recorded step. If steps overlap, no operations are returned."""
    p = mesh.axes["pp"]
    if p == 1:
        return {}, []
    measured, simulated, spans = np.zeros(2), np.zeros(2), list[Span]()  # idle and computing
    schedule = find(config.schedule)
    overlap, by_formula = schedule.update_each, dict[str, float]()
    for ranks in mesh.groups("pp"):
        rows = table[np.isin(table["rank"], ranks)]
        send = _message(rows)
        alike = defaultdict(list)  # steps by their number of micro-batches
        for step in _steps(rows, overlap):
            alike[1 + int(step["micro"].max())].append(step)
        for m, steps in alike.items():
            for step in steps:
                makespan = step["ended"].max() - step["began"].min()
                measured += _idle_and_computing(p, makespan, step["net"].sum())
            on_paper = _simulated(config, p, m, np.concatenate(steps), send)
            simulated += len(steps) * _idle_and_computing(p, on_paper.makespan, sum(on_paper.busy))
            if m != max(alike, key=lambda m: len(alike[m])):
                continue
            stages = 1 + int(rows["stage"].max())
            if (share := schedule.bubble(p, m, stages // p)) is not None:
                by_formula["formula"] = float(share)
            if not overlap:
                spans += [span._replace(rank=ranks[span.rank]) for span in on_paper.timeline.spans]
    if not measured.any():
        return {}, []
    sums = {"measured": measured, "simulated": simulated}
    shares = {name: float(idle / busy) for name, (idle, busy) in sums.items()}
    return {"bubble": shares | by_formula}, spans


def _idle_and_computing(p: int, makespan: float, computing: float) -> np.ndarray:
    return np.array([p * makespan - computing, computing])


def _steps(rows: np.ndarray, overlap: bool) -> list[np.ndarray]:
    """Returns the passes of one pipeline's ranks for each step, or for each epoch if steps
    overlap."""
    number = rows["step"]
    if overlap:  # an evaluation ends each epoch, so counting evaluations numbers the epochs
        of_ranks = [rows[rows["rank"] == r] for r in np.unique(rows["rank"])]
        number = np.concatenate([np.cumsum(which(events, "evaluate")) for events in of_ranks])
    chosen = which(rows, *(COMPUTE if overlap else PASSES))
    order = np.flatnonzero(chosen)[np.argsort(number[chosen], kind="stable")]
    first = np.flatnonzero(np.diff(number[order])) + 1
    return np.split(rows[order], first) if len(order) else []


def _message(rows: np.ndarray) -> float:
    """Returns how long a message takes, in seconds: the median of the waits in `rows` that began
    before the message was sent, from the send to the end of the wait; 0 if there are none."""
    early = rows[(rows["sent"] >= 0) & (rows["arrived"] > rows["began"])]
    return float(np.median(early["ended"] - early["arrived"])) if len(early) else 0.0


def _simulated(config: Config, p: int, m: int, rows: np.ndarray, send: float) -> Simulation:
    """Simulates a step of m micro-batches on a pipeline of p ranks; each pass takes the mean time
    of its stage in `rows`, and each message `send` seconds."""

    def mean(*kinds: str, stage: int | None = None) -> float:
        chosen = rows[which(rows, *kinds) & (stage is None or rows["stage"] == stage)]
        # a pass of a stage has an event for each of its units
        whole = np.unique(chosen[["rank", "step", "kind", "micro"]]).size
        return float(chosen["net"].sum()) / whole if whole else 0.0

    stages = 1 + int(rows["stage"].max())
    times = [
        dict.fromkeys((Kind.F, Kind.RECOMPUTE), mean("F", "RECOMPUTE", stage=s))
        | {kind: mean(kind.value, stage=s) for kind in (Kind.B, Kind.I)}
        # a stage that computes no gradient of its input has B in place of W
        | {Kind.W: mean("W", stage=s) or mean("B", stage=s)}
        for s in range(stages)
    ]
    plan = lists(find(config.schedule), p, m, stages // p, config.recompute == "stage")
    return simulate(plan, Costs(times, send, mean("AGREE") + mean("APPLY")))
