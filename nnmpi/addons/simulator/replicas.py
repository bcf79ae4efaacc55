"""Simulates replicas that exchange gradients or parameters over slow links: the seconds of a step.

A model has equal layers; forward passes take a third of a step, backward passes two thirds. The
exchange of a layer starts when its backward pass ends; exchanges queue up on the one link of the
replica. In the step in which the schedule applies an exchange, the forward pass of the layer waits
for it. All replicas are equally fast. (The model of Streaming DiLoCo, arXiv 2501.18512, section
3.1.)

    compute  F0 F1 F2 B2  B1  B0  F0...F1 F2
    link              2   1   0
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from nnmpi.addons.simulator.clock import Cost, Timing, timed
from nnmpi.addons.simulator.drawing.timeline import BACKGROUND, Span
from nnmpi.schedules.local_steps import LocalSteps

SHARES = 0.5, 0.8, 0.9, 0.95, 0.99
"""Shares of a step spent computing, for each of which tables give the bandwidth needed."""

GBIT = 1e9 / 8
"""Bytes in a gigabit."""

LEAST, MOST = 1.0, 1e18  # bytes per second, between which a bandwidth is searched
EXACT = 1e-7  # of a bandwidth, or of a time


class Model(NamedTuple):
    """A replica's model: equal layers, and the seconds to compute a step."""

    layers: int
    seconds: float


class Sent(NamedTuple):
    """The number of messages and bytes that a replica sends in an exchange with others."""

    messages: float
    nbytes: float

    def seconds(self, alpha: float, rate: float) -> float:
        """Returns the seconds of the messages on a link of `alpha` and `rate`."""
        return self.messages * alpha + self.nbytes / rate


def all_reduce(n: int, nbytes: float, layers: int) -> Sent:
    """Returns what n replicas send in a ring all-reduce for each layer."""
    return Sent(2 * (n - 1) * layers, 2 * (n - 1) * nbytes / n)


class LayersOp(NamedTuple):
    """A pass F or B of a replica over consecutive layers, or an exchange of one layer.

    micro    the number of the step: of a pass, or the one in which an exchange is applied
    layer    the layer at which the pass begins: its first in F, its last in B
    """

    kind: str
    micro: int
    layer: int
    layers: int = 1


def step_ops(
    layers: int, schedule: LocalSteps, sent: Sequence[Sequence[int]], step: int
) -> Iterator[LayersOp]:
    """Yields the operations of a replica in a step. A pass is cut where a layer waits for an
    exchange, or where one of those `sent` after this step of the period is sent."""
    sent_in = step - 1 - schedule.apply_after
    waiting = sorted(sent[sent_in % schedule.every]) if sent_in >= 0 else []
    for layer, stop in pairwise([*dict.fromkeys((0, *waiting)), layers]):
        yield LayersOp("F", step, layer, stop - layer)
    last = layers
    for layer in sent[step % schedule.every]:
        yield LayersOp("B", step, last - 1, last - layer)
        yield LayersOp(BACKGROUND, step + 1 + schedule.apply_after, layer)
        last = layer
    if last:
        yield LayersOp("B", step, last - 1, last)


def steps(
    model: Model, schedule: LocalSteps, piece: float, count: int
) -> list[tuple[float, list[Span]]]:
    """Simulates `count` steps of a replica; returns for each the time of its end, and the spans of
    the replica and its link. `piece` is the seconds of an exchange of one layer."""
    seconds = {"F": model.seconds / 3 / model.layers, "B": 2 * model.seconds / 3 / model.layers}
    arrivals = defaultdict[int, dict[int, float]](dict)  # by layer

    def timing(_: int, op: LayersOp) -> Timing:
        kind, micro, layer, layers = op
        if kind == BACKGROUND:
            return Timing(Cost(piece, "link"), given=arrivals[layer])
        waits = kind == "F" and micro in arrivals[layer]
        return Timing(Cost(layers * seconds[kind]), arrivals[layer] if waits else None)

    sends = schedule.sent(model.layers)
    ops = [op for step in range(count) for op in step_ops(model.layers, schedule, sends, step)]
    computed, sent = ([list[Span]() for _ in range(count)] for _ in range(2))
    clock = 0.0
    for _, op, _, start, end in timed([ops], timing):
        span = Span(0, op.kind, op.micro, 0, start, end)
        if op.kind == BACKGROUND:
            sent[op.micro - 1 - schedule.apply_after].append(span._replace(micro=-1))
            continue
        spans = computed[op.micro]
        if start > clock:
            spans.append(Span(0, "wait", -1, 0, clock, start))
        elif spans and spans[-1].kind == op.kind:  # it goes on
            span = span._replace(start=spans.pop().start)
        spans.append(span)
        clock = end
    return [(spans[-1].end, spans + link) for spans, link in zip(computed, sent, strict=True)]


def seconds_a_step(model: Model, schedule: LocalSteps, piece: float) -> float:
    """Returns the mean seconds of a step in a long run: the mean over the last two of five
    simulated periods of the schedule. `piece` is the seconds that an exchange of one layer takes.

    If the link needs more time for a period than the computation, exchanges queue up without limit,
    so the time of the link is a lower bound.
    """
    every = schedule.every
    ends = [end for end, _ in steps(model, schedule, piece, 5 * every)]
    return max(ends[-1] - ends[3 * every - 1], 2 * model.layers * piece) / (2 * every)


def gbit_needed(computing: float, seconds: Callable[[float], float]) -> dict[str, float | None]:
    """Returns the Gbit/s at which `computing` seconds are 50%, 80%, ... (SHARES) of a step, by the
    share as text; None if no bandwidth suffices. `seconds(rate)` are those of a step at so many
    bytes per second."""
    rates = {f"{share:.0%}": rate_needed(computing / share, seconds) for share in SHARES}
    return {share: rate and rate / GBIT for share, rate in rates.items()}


def rate_needed(limit: float, seconds: Callable[[float], float]) -> float | None:
    """Returns the least bandwidth, in bytes per second, at which a step takes at most `limit`
    seconds; None if there is none. `seconds` gives the time of a step at a bandwidth.

    As long as a step waits for the same exchange, its seconds are linear in 1 / rate. So the search
    narrows a range of rates in two ways in turn: at the point where a line between the two ends of
    the range reaches the limit, and at the middle of the range on a logarithmic scale.
    """
    (low, slow), (high, fast) = ((rate, seconds(rate)) for rate in (LEAST, MOST))
    if fast > limit:
        return None
    if slow <= limit:
        return low
    by_line = True
    while high > low * (1 + EXACT):
        share = (limit - fast) / (slow - fast)
        of_byte = 1 / high + share * (1 / low - 1 / high)
        rate, by_line = 1 / of_byte if by_line else (low * high) ** 0.5, not by_line
        # a line that reaches the limit there: is it the first such rate?
        for tried in (rate, rate / (1 + EXACT), rate * (1 + EXACT)):
            if low < tried < high:
                taken = seconds(tried)
                if taken > limit:
                    low, slow = tried, taken
                else:
                    high, fast = tried, taken
                if abs(taken - limit) > limit * EXACT:
                    break
    return high
