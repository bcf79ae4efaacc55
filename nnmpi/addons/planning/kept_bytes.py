"""Lower bounds on the bytes of activations that ranks keep for backward passes, from passes
recorded over one and two samples.

These bytes grow linearly with the samples. A stage keeps the sum over its sections, and a rank that
sum for each micro-batch that its schedule has in flight."""

from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.paper.recording import section_bytes
from nnmpi.addons.planning.paper.repeated import joined_bytes
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.facts.passes import PassBytes
from nnmpi.schedules.find import find
from nnmpi.schedules.op import Kind
from nnmpi.schedules.pipeline import Schedule


class SectionBytes(NamedTuple):
    """The bytes of activations that each section (`paper/repeated.py`) keeps for its backward pass.

    starts      the first node of each section
    of_samples  the bytes of all sections, for one sample and for two
    """

    starts: list[int]
    of_samples: tuple[list[PassBytes], list[PassBytes]]


class KeptBytes:
    """Computes lower bounds on the activations that ranks keep, for layouts of one model."""

    def __init__(self, arranger: Arranger) -> None:
        self._arranger = arranger
        self._sections = dict[tuple[Any, ...], SectionBytes]()
        self._stages = dict[tuple[Any, ...], np.ndarray]()

    def of_ranks(self, candidate: Candidate, samples: int) -> np.ndarray:
        """A lower bound on the peak bytes of activations of each rank along pp, shape (pp,)."""
        # 1F1B keeps no more at once with more micro-batches
        count = min(candidate.micro_batches, 2 * candidate.pp)
        of_stages = self._of_stages(candidate, samples)
        place = np.array(self._arranger.division(candidate).place)
        least: np.ndarray
        of_ranks = [of_stages[:, place == r].min(axis=1) for r in range(candidate.pp)]
        enters, kept, left = np.transpose(of_ranks)
        virtual = len(place) // candidate.pp
        flying, between = in_flight(find(candidate.schedule), candidate.pp, count, virtual)
        if candidate.recompute == "stage":
            least = np.maximum(flying * enters + between * left, kept)
        else:
            least = flying * kept + between * left
        return least

    def _of_stages(self, candidate: Candidate, samples: int) -> np.ndarray:
        """Lower bounds on the bytes that each stage keeps of a micro-batch, shape (3, stages): of
        its input; of all activations; and of all that is kept between the halves I and W of a
        backward pass."""
        key = *self._arranger.division_key(candidate), *_way(candidate)
        if key not in self._stages:
            found, rows = self._sections_of(candidate), list[list[tuple[int, int, int]]]()
            for parts in found.of_samples:
                division = self._arranger.division(candidate)
                rows.append([_kept(found.starts, parts, part.nodes) for part in division.stages])
            self._stages[key] = np.array(rows, float)  # samples, stages, what
        one, two = self._stages[key]
        least: np.ndarray = ((two - one) * samples).T
        return least

    def _sections_of(self, candidate: Candidate) -> SectionBytes:
        if (key := _way(candidate)) not in self._sections:
            unpiped = candidate._replace(
                dp=candidate.dp * candidate.pp, pp=1, schedule="1f1b", zero=0
            )
            a = self._arranger.without_parameters(unpiped)
            self._sections[key] = SectionBytes(*_recorded(a, candidate.schedule == "zb-h1"))
        return self._sections[key]


def _way(candidate: Candidate) -> tuple[Any, ...]:
    """Returns the options, as a cache key, that determine which activations layers keep."""
    return (
        *(candidate.tp, candidate.cp, candidate.sequence_parallel),
        *(candidate.layout, candidate.recompute, candidate.schedule == "zb-h1"),
    )


def _recorded(
    a: Arrangement, halves: bool
) -> tuple[list[int], tuple[list[PassBytes], list[PassBytes]]]:
    """Records all sections of a model, with `halves` also I and W; returns (the first node of each
    section, two lists with the bytes of each section: for one sample and for two)."""
    starts, one = section_bytes(a, 0, 1, halves)
    return starts, (one, section_bytes(a, 0, 2, halves)[1])


def _kept(starts: list[int], parts: list[PassBytes], nodes: range) -> tuple[int, int, int]:
    """Returns lower bounds on the bytes that a stage with these nodes keeps of a micro-batch: (of
    its input, of all activations, between the halves I and W). Only sections wholly in the stage
    count: `starts` has the first node of each section, `parts` its PassBytes."""
    ends = [*starts[1:], nodes.stop]
    inside = [k for k, start in enumerate(starts) if start in nodes and ends[k] <= nodes.stop]
    if not inside:
        return 0, 0, 0
    of = joined_bytes([parts[k] for k in inside], has_gradient=nodes.start > 0)
    if starts[inside[0]] == nodes.start:
        return of.enters, of.kept, of.left
    return 0, of.inside, of.inside


@cache
def in_flight(schedule: Schedule, p: int, m: int, v: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two numbers for each rank: the micro-batches between their forward and backward pass,
    and those between I and W, when the sum of the two is largest. There are p ranks, m
    micro-batches and v stages per rank; a micro-batch counts once for each stage."""
    most = list[tuple[int, int]]()
    for ops in schedule.compute(p, m, v):
        flying = accumulate((op.kind is Kind.F) - (op.kind in (Kind.B, Kind.I)) for op in ops)
        between = accumulate((op.kind is Kind.I) - (op.kind is Kind.W) for op in ops)
        most.append(max(zip(flying, between, strict=True), key=lambda two: (sum(two), two[1])))
    flying_most, between_most = np.array(most).T
    return flying_most, between_most
