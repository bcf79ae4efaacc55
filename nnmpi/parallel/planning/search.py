"""The fastest layout that fits: candidates in the order of a bound, until no other can be better.

    candidates ─► bound ─► closer bound ─► arranged: memory ─► time of a step ─► best
                    └───────── larger than the worst of the best: pruned

A layout that does not fit comes again with recomputation, which is never faster.
"""

import heapq
from collections.abc import Iterable, Mapping
from itertools import chain, count
from typing import NamedTuple

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.memory import activations, memory
from nnmpi.parallel.planning.bound import Bounds
from nnmpi.parallel.planning.candidate import Candidate, candidates, recomputed, shapes
from nnmpi.parallel.planning.paper import Paper
from nnmpi.parallel.planning.step_time import CostModel, StepTime, step_time


class Planned(NamedTuple):
    """A layout with what it takes: seconds of a step, and bytes on the rank that has most."""

    layout: Candidate
    time: StepTime
    nbytes: int


class Counts(NamedTuple):
    """How many layouts there were: those whose time is known, those that cannot be among the best
    by their bound, those that cannot be, and those that are too large."""

    looked: int
    pruned: int
    refused: int
    too_large: int


class Search(NamedTuple):
    """What was found.

    best     layouts that fit, the fastest first
    pure     the fastest of each way of being parallel alone, by its name, even if it is too large
    looked   all layouts whose time was computed
    refused  how many layouts cannot be, by the reason
    least    the layout that takes the least memory, where none fits
    """

    best: list[Planned]
    pure: Mapping[str, Planned]
    looked: list[Planned]
    counts: Counts
    refused: Mapping[str, int]
    least: Planned | None = None


def largest(a: Arrangement) -> int:
    """The bytes of the rank that has most: of the first ranks of replicas, or of the last ones."""
    batch = a.config.batch_size
    axes = ("pp", "tp") if a.sharding.branches.variables else ("pp",)
    ranks = {*a.mesh.group(0, *axes), *a.mesh.group(a.mesh.size - 1, *axes)}
    return max(memory(a, r, batch).total + activations(a, r, batch) for r in ranks)


class Searcher:
    """Looks at layouts, each once."""

    def __init__(
        self, paper: Paper, costs: CostModel, most_bytes: float, prunes: bool = True
    ) -> None:
        self._paper, self._costs, self._most, self._prunes = paper, costs, most_bytes, prunes
        self._bounds = Bounds(paper, costs)
        self._arranged = dict[Candidate, Arrangement | None]()
        self._nbytes = dict[Candidate, int]()
        self._planned = dict[Candidate, Planned]()
        self._refused = dict[str, set[Candidate]]()
        self._too_large = set[Candidate]()

    def search(self, keep: int = 10) -> Search:
        """The layouts that take the least time."""
        ranks = self._paper.cluster.size
        there = [one for shape in shapes(ranks) for one in candidates(self._paper.plain, shape)]
        possible = [one for one in there if not self._is_refused(one)]
        best = self._fastest(possible, keep, self._most)
        pure, ways = dict[str, Planned](), dict[str, list[Candidate]]()
        for one in possible:
            if one.pure:
                ways.setdefault(one.pure, []).append(one)
        for name, several in ways.items():
            found = self._fastest(several, 1, self._most)
            found = found or self._fastest(several, 1, float("inf"))
            pure |= {name: one for one in found}
        least = None if best or not possible else self._least(possible)
        refused = {why: len(those) for why, those in self._refused.items()}
        looked = [*self._planned.values()]
        seen = len(looked) + sum(refused.values()) + len(self._too_large - {*self._planned})
        counts = Counts(
            len(looked), max(len(there) - seen, 0), sum(refused.values()), len(self._too_large)
        )
        return Search(best, pure, looked, counts, refused, least)

    def _is_refused(self, one: Candidate) -> bool:
        """Whether the model cannot be cut in this way."""
        if why := self._paper.refusal(one):
            self._refused.setdefault(why, set()).add(one)
        return bool(why)

    def _fastest(self, layouts: Iterable[Candidate], keep: int, most: float) -> list[Planned]:
        """The fastest that fit, the fastest first.

        The queue has (bound, how close it is, order, layout).
        """
        order, best = count(), list[Planned]()
        queue = [(self._bounds.seconds(one), 0, next(order), one) for one in layouts]
        heapq.heapify(queue)
        while queue:
            bound, is_close, _, one = heapq.heappop(queue)
            if self._prunes and len(best) == keep and bound >= best[-1].time.seconds:
                break
            if not is_close:
                closer = max(self._bounds.closer(one), bound)
                heapq.heappush(queue, (closer, 1, next(order), one))
                continue
            if not self._fits(one, most):
                if again := recomputed(one):
                    heapq.heappush(queue, (bound, 1, next(order), again))
                continue
            if found := self._timed(one):
                best = sorted([*best, found], key=lambda p: (p.time.seconds, p.layout))[:keep]
        return best

    def _least(self, layouts: Iterable[Candidate]) -> Planned | None:
        """The layout that takes the least memory."""
        again = (recomputed(one) for one in layouts)
        there = sorted(
            ((self._bounds.nbytes(one), one) for one in chain(layouts, again) if one)
        )
        least: Candidate | None = None
        for bound, one in there:
            if least and bound >= self._nbytes[least]:
                break
            if self._sized(one) and (not least or self._nbytes[one] < self._nbytes[least]):
                least = one
        return self._timed(least) if least else None

    # ---- what is known of one layout

    def _fits(self, one: Candidate, most: float) -> bool:
        """Whether a layout fits, or may: one that cannot be does not."""
        is_small = self._bounds.nbytes(one) <= most and self._sized(one) <= most
        if not is_small:
            self._too_large.add(one)
        return is_small and one in self._nbytes

    def _sized(self, one: Candidate) -> int:
        """The bytes of its largest rank; 0 if it cannot be."""
        if one not in self._arranged:
            try:
                self._arranged[one] = a = self._paper.arranged(one)
                self._nbytes[one] = largest(a)
            except ValueError as error:
                self._refused.setdefault(str(error), set()).add(one)
                self._arranged[one] = None
        return self._nbytes.get(one, 0)

    def _timed(self, one: Candidate) -> Planned | None:
        """What a layout takes that was arranged; nothing if it cannot be."""
        a = self._arranged[one]
        if a is not None and one not in self._planned:
            self._planned[one] = Planned(one, step_time(a, self._costs), self._nbytes[one])
            a.prices.clear()
        return self._planned.get(one)
