"""Finds the fastest layouts that fit in memory: computes the time and memory of candidates (prices
them) in the order of lower bounds, until no other candidate can be faster.

    candidates ─► bound ─► closer bound ─► arranged: memory ─► time of a step ─► best
                    └───────── larger than the slowest of the best: pruned

Candidates are all sizes dp x cp x pp x tp of the ranks, with ZeRO 0 to 3, sequence parallelism, the
schedules 1f1b, interleaved and zb-h1, and 1, 2, 4, ... 64 micro-batches, or any number that makes
them equal. Layouts along tp, or dp and tp, are also tried with the fastest way to shard each layer.
Among cuts within 2% of the fastest, the search takes the one with the shortest messages, and then
the one whose largest stage takes least memory.

The search ignores how well a model learns (all layouts have one batch size), micro-batches of
different sizes, sums that delay messages between stages on the same link, ways of single layers
with a pipeline or --cp, BLAS with several threads, workspace of kernels except for convolutions,
other programs, and that a codec decodes more if there are more ranks.
"""

import gc
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from operator import itemgetter
from time import process_time
from typing import Any, NamedTuple

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.bound import LowerBounds
from nnmpi.addons.planning.candidate import Candidate, candidates, recomputed, shapes
from nnmpi.addons.planning.fastest_sum import with_fastest_sum
from nnmpi.addons.planning.layer_ways import LayerWays
from nnmpi.addons.planning.paper.activations import needed
from nnmpi.addons.planning.paper.rank import exchanges, sent_in_period
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.step_time import StepTime, step_time
from nnmpi.options.collector import gc_paused
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Traffic

LATER = 1.3
"""ZeRO 2 and 3 are queued at this multiple of their bound, which is far too low."""


class PricedLayout(NamedTuple):
    """A layout for which the search has predicted time, memory and traffic.

    nbytes         the peak bytes of the rank that needs most memory
    sent, period   what the rank that sends most sends in `period` steps
    allreduce      the fastest all-reduce for the layout
    cut            the first layer of each stage but the first, such as "3,7"; None with one stage
    """

    layout: Candidate
    time: StepTime
    nbytes: int
    sent: Traffic
    period: int
    allreduce: str
    cut: str | None

    @property
    def options(self) -> dict[str, Any]:
        """The options of a Config that select this layout."""
        return {**self.layout.options, "allreduce": self.allreduce, "cut": self.cut}

    @property
    def flags(self) -> str:
        """The command-line flags that select this layout, without the cut."""
        sums = "" if self.allreduce == "auto" else f" --allreduce {self.allreduce}"
        return self.layout.flags + sums


class SearchCounts(NamedTuple):
    """How many layouts a search has examined, by what became of them.

    looked      their time and memory were computed
    pruned      left out, since a lower bound of their time is more than the time of the best ones
    refused     impossible, because the model cannot be divided so
    unpriced    their time was not computed, because the search had used up its own time
    """

    looked: int
    pruned: int
    refused: int
    too_large: int
    unpriced: int = 0


class SearchResult(NamedTuple):
    """The result of a search for the fastest layout.

    best     layouts that fit, the fastest first
    pure     for each single strategy, such as "dp" or "zero 3", its fastest layout that fits; if
             none fits, its fastest layout
    looked   all layouts whose time and memory were computed
    refused  a dict: reason -> the number of layouts that are impossible for this reason
    least    if no layout fits, the one that takes the least memory
    """

    best: list[PricedLayout]
    pure: Mapping[str, PricedLayout]
    looked: list[PricedLayout]
    counts: SearchCounts
    refused: Mapping[str, int]
    least: PricedLayout | None = None


def _of_ends(a: Arrangement) -> set[int]:
    """Returns ranks that stand for all in a search: those of the first and the last replica, one
    for each stage (and for each place along tp if branches of the model run on different ranks)."""
    axes = ("pp", "tp") if a.sharding.owned.variables else ("pp",)
    return {*a.mesh.group(0, *axes), *a.mesh.group(a.mesh.size - 1, *axes)}


def largest(a: Arrangement) -> int:
    """Returns the peak bytes of the rank of `_of_ends` that needs most."""
    return max(needed(a, r, a.config.batch_size) for r in _of_ends(a))


def most_sent(a: Arrangement) -> tuple[Traffic, int]:
    """Returns the traffic of the rank of `_of_ends` that sends most, and for how many steps."""
    logged = ((r, exchanges(a, r, a.config.batch_size)) for r in _of_ends(a))
    return max(sent_in_period(a, r, chain.from_iterable(along.values())) for r, along in logged)


class Searcher:
    """Searches for the fastest layouts of one model on one cluster that need at most `most_bytes`
    per rank. After `within` seconds of processor time (`clock`) it returns those found so far, at
    least one. With `prunes=False` it also computes the time of layouts that cannot be among the
    fastest."""

    def __init__(
        self,
        arranger: Arranger,
        costs: CostModel,
        most_bytes: float,
        prunes: bool = True,
        within: float = float("inf"),
        clock: Callable[[], float] = process_time,
    ) -> None:
        self._arranger, self._costs, self._most, self._prunes = arranger, costs, most_bytes, prunes
        self._clock, self._until = clock, clock() + within
        self._bounds, self._ways = LowerBounds(arranger, costs), LayerWays(arranger, costs)
        self._last = dict[Candidate, Arrangement]()
        self._nbytes = dict[Candidate, int | None]()
        self._times = dict[Candidate, StepTime | None]()
        self._found = dict[Candidate, PricedLayout]()
        self._refused = dict[str, set[Candidate]]()
        self._too_large = set[Candidate]()

    @gc_paused()
    def search(self, keep: int = 10) -> SearchResult:
        """Finds the `keep` fastest layouts that fit, and says what became of others."""
        layouts = [*self._candidates()]
        possible = [candidate for candidate in layouts if not self._is_refused(candidate)]
        best, unpriced = self._fastest(possible, keep, self._most, self._until)
        least = None
        if not best and possible:
            least, unsized = self._least(possible)
            unpriced |= unsized
            if least and least.nbytes <= self._most:  # there was no time to meet it by its bound
                best, least = [least], None
        pure, ways = dict[str, PricedLayout](), dict[str, list[Candidate]]()
        for candidate in possible:
            if candidate.pure:
                ways.setdefault(candidate.pure, []).append(candidate)
        for name, layouts_of_way in ways.items():
            until = float("inf") if name == "dp" else self._until  # others are compared with dp
            for most in (self._most, float("inf")):
                if fastest := self._fastest(layouts_of_way, 1, most, until)[0]:
                    pure[name] = fastest[0]
                    break
        refused = {why: len(those) for why, those in self._refused.items()}
        looked = sum(time is not None for time in self._times.values())
        unpriced -= {*self._times}
        known = {*self._times}.union(self._too_large, unpriced, *self._refused.values())
        counts = SearchCounts(
            *(looked, len({*layouts} - known), sum(refused.values()), len(self._too_large)),
            unpriced=len(unpriced),
        )
        return SearchResult(best, pure, [*self._found.values()], counts, refused, least)

    def _candidates(self) -> Iterator[Candidate]:
        """Yields all layouts; along tp also with each layer divided in the fastest way."""
        for shape in shapes(self._arranger.cluster.size):
            for candidate in candidates(self._arranger.plain, shape):
                yield candidate
                if ways := self._ways.of(candidate):
                    yield candidate._replace(layout=ways)

    def _is_refused(self, candidate: Candidate) -> bool:
        """True if this layout cannot divide the model; it is then counted by its reason."""
        if why := self._arranger.refusal(candidate):
            self._refused.setdefault(why, set()).add(candidate)
        return bool(why)

    def _fastest(
        self, layouts: Iterable[Candidate], keep: int, most: float, until: float
    ) -> tuple[list[PricedLayout], set[Candidate]]:
        """Returns the `keep` fastest layouts of at most `most` bytes, the fastest first, and those
        that may be faster but were not timed before the clock reached `until`.

        Layouts are examined in the order of lower bounds. Those with ZeRO 2 and 3 come later than
        their bounds say, since these assume that passes hide more communication than they can.
        """
        bounds = self._bounds
        closer = bounds.with_sums, bounds.with_messages, bounds.with_buckets
        order, best = count(), list[PricedLayout]()
        queue = list[tuple[float, float, int, int, Candidate]]()

        def push(bound: float, level: int, candidate: Candidate) -> None:
            place = bound * (LATER if candidate.zero > 1 else 1)
            heapq.heappush(queue, (place, bound, level, next(order), candidate))

        for candidate in layouts:
            push(self._bounds.seconds(candidate), 0, candidate)
        while queue:
            _, bound, level, _, candidate = heapq.heappop(queue)
            is_full = self._prunes and len(best) == keep
            if is_full and bound >= best[-1].time.seconds:
                continue
            if self._clock() > until:
                worst = best[-1].time.seconds if is_full else float("inf")
                return best, {candidate, *(c for _, b, _, _, c in queue if b < worst)}
            if level < len(closer):  # closer bounds cost more: compute them only for the front
                bound = max(closer[level](candidate), bound)
                push(bound, level + 1, candidate)
                continue
            may_fit = self._bounds.nbytes(candidate) <= most
            if may_fit and self._bounds.with_activations(candidate) <= most:
                time = self._time(candidate)
                if time is None or (is_full and time.seconds > best[-1].time.seconds):
                    continue
                if (planned := self._planned(candidate)).nbytes <= most:
                    best = sorted([*best, planned], key=lambda p: (p.time.seconds, p.layout))[:keep]
                    continue
            self._too_large.add(candidate)
            for again in recomputed(candidate, self._arranger.has_blocks) if may_fit else ():
                push(bound, 0, again)
        return best, set()

    def _least(self, layouts: Iterable[Candidate]) -> tuple[PricedLayout | None, set[Candidate]]:
        """Returns the layout that needs least memory, and those not examined that may need less."""
        ways = [*layouts]
        ways += [k for candidate in ways for k in recomputed(candidate, self._arranger.has_blocks)]
        # of equal bounds, which lack activations, those of the smallest micro-batches come first
        ways.sort(key=lambda candidate: (-candidate.micro_batches, candidate))
        bounded = sorted(((self._bounds.nbytes(way), way) for way in ways), key=itemgetter(0))
        sized, unsized = list[tuple[int, Candidate]](), set[Candidate]()
        for k, (bound, candidate) in enumerate(bounded):
            if sized and bound >= min(sized)[0]:
                break
            if sized and self._clock() > self._until:
                unsized = {way for least, way in bounded[k:] if least < min(sized)[0]}
                break
            if nbytes := self._sized(candidate):
                sized.append((nbytes, candidate))
        return self._planned(min(sized)[1]) if sized else None, unsized

    # ---- what is known of one layout

    def _arranged(self, candidate: Candidate) -> Arrangement | None:
        """Returns a layout's arrangement, or None if it is impossible; caches only the last one."""
        if candidate not in self._last:
            self._last.clear()
            gc.collect(0)  # an arrangement on paper has cycles
            try:
                a = self._arranger.arranged(candidate)
                if candidate.zero != a.store.zero:
                    raise ValueError(
                        f"zero {candidate.zero}: the ranks of a node already share everything that "
                        "it would divide"
                    )
                self._last[candidate] = with_fastest_sum(a, self._costs.exchanges)
            except ValueError as error:
                self._refused.setdefault(str(error), set()).add(candidate)
        return self._last.get(candidate)

    def _time(self, candidate: Candidate) -> StepTime | None:
        """Returns the predicted time of a step of a layout; None if the layout is impossible."""
        if candidate not in self._times:
            a = self._arranged(candidate)
            self._times[candidate] = None if a is None else step_time(a, self._costs)
        return self._times[candidate]

    def _sized(self, candidate: Candidate) -> int | None:
        """Returns the bytes of the rank that needs most, or None for an impossible layout."""
        if candidate not in self._nbytes:
            a = self._arranged(candidate)
            self._nbytes[candidate] = None if a is None else largest(a)
        return self._nbytes[candidate]

    def _planned(self, candidate: Candidate) -> PricedLayout:
        """Returns the time, memory and traffic of a layout that is known to be possible."""
        if candidate not in self._found:
            time = self._time(candidate)
            nbytes = self._sized(candidate)
            a = self._arranged(candidate)
            assert time is not None
            assert nbytes is not None
            assert a is not None
            cut = ",".join(map(str, a.division.begins)) or None
            self._found[candidate] = PricedLayout(
                candidate, time, nbytes, *most_sent(a), a.config.allreduce, cut
            )
        return self._found[candidate]
