"""The time of a step by the formula of the assignment layouts, written in right ways and in wrong
ones, and the layout that each way finds for a student."""

import tomllib
from collections.abc import Iterator
from functools import partial
from math import log2
from typing import Any, NamedTuple

from classroom.situations import Numbers


class Layout(NamedTuple):
    dp: int
    tp: int
    pp: int
    micro: int


class Way(NamedTuple):
    """A way to write the formula; the default is that of the README.

    Right as well: the first layer has no gradient of its input; a ring within nodes, in place of
    shared memory; gradient sums behind half of the computing; a gradient sum for each layer; sums
    of tp divided evenly among stages; messages one by one where the pipeline fills and drains; the
    agreement of ranks counts; each term is rounded to so many digits.

    Wrong: a term, or a factor, is left out.
    """

    first_layer: bool = False
    ring: bool = False
    hidden: bool = False
    by_layer: bool = False
    even_sums: bool = False
    fills: bool = False
    agrees: bool = False
    digits: int = 12
    start: bool = True
    alpha: bool = True
    bubble: bool = True
    operations: bool = True
    rows_of_dp: bool = True
    sums_of_dp: bool = True
    sums_of_tp: bool = True
    borders: bool = True
    near: bool = True
    far: bool = True
    shared_link: bool = True
    memory: bool = True


RIGHT = {
    "as the README says": Way(),
    "the first layer has two products": Way(first_layer=True),
    "rings within nodes": Way(ring=True),
    "gradient sums run behind passes": Way(hidden=True),
    "a gradient sum for each layer": Way(by_layer=True),
    "sums of tp divided evenly": Way(even_sums=True),
    "the pipeline fills and drains": Way(fills=True),
    "ranks agree": Way(agrees=True),
    "three digits": Way(digits=3),
    "two digits": Way(digits=2),
    "fills, drains, and hides sums": Way(fills=True, hidden=True),
}
WRONG = {
    "products have no start": Way(start=False),
    "messages have no alpha": Way(alpha=False),
    "no bubble": Way(bubble=False),
    "products take no longer than their start": Way(operations=False),
    "the whole batch on each rank": Way(rows_of_dp=False),
    "no gradient sums": Way(sums_of_dp=False),
    "no sums of tp": Way(sums_of_tp=False),
    "no messages at borders": Way(borders=False),
    "nothing within a node": Way(near=False),
    "all links are near": Way(far=False),
    "each rank has a link of its own": Way(shared_link=False),
    "any memory": Way(memory=False),
}


class Student:
    """The numbers of a student, as `machine.toml` and `plan.txt` say them, and the formula."""

    def __init__(self, numbers: Numbers) -> None:
        self.file: dict[str, Any] = tomllib.loads(numbers.machine)
        self.model, self.ranks = numbers.model, numbers.ranks
        self.a_node: int = self.file["ranks"]
        self.rate = self.file["peak"]["float32"] * self.file["products"]["share"]

    def layouts(self) -> Iterator[Layout]:
        """Four layers have 1, 2 or 4 even stages; nodes cut no group unevenly."""
        for tp in range(1, self.ranks + 1):
            for pp in (1, 2, 4):
                dp = self.ranks // (tp * pp)
                if dp * tp * pp == self.ranks and self._is_even(tp) and self._is_even(dp * tp):
                    for micro in (1,) if pp == 1 else (2, 4, 8):
                        if self.model.rows % (dp * micro) == 0:
                            yield Layout(dp, tp, pp, micro)

    def _is_even(self, ranks: int) -> bool:
        return ranks % self.a_node == 0 or self.a_node % ranks == 0

    def fits(self, at: Layout) -> bool:
        whole = 16 * 4 * self.model.d * self.model.f
        return bool(whole / (at.tp * at.pp) <= self.file["memory"]["size"])

    def best(self, way: Way) -> tuple[Layout, float]:
        """The layout that this way finds, and how much longer the best on another mesh takes."""
        timed = [(self.seconds(at, way), at) for at in self.layouts()]
        (least, best), *others = sorted(t for t in timed if not way.memory or self.fits(t[1]))
        mesh = best.tp, best.pp
        return best, min(t for t, at in others if (at.tp, at.pp) != mesh) / least

    def seconds(self, at: Layout, way: Way) -> float:
        """The seconds of a step: rounds of micro-batches, then sums of gradients."""
        rounds = at.micro + (at.pp - 1) * way.bubble
        borders = [self._border(at, b, way) for b in range(1, at.pp)] if way.borders else []
        longest = max(borders, default=0.0)
        terms = [
            rounds * self._products(at, way),
            rounds * self._sums_of_tp(at, way),
            2 * sum(borders) + (at.micro - 1) * longest if way.fills else rounds * longest,
            self._sums_of_dp(at, way),
            log2(self.ranks) * self.file["far"]["alpha"] * (way.agrees and at.tp * at.pp > 1),
        ]
        return sum(float(f"{term:.{way.digits}g}") for term in terms)

    def _rows(self, at: Layout, way: Way) -> float:
        return self.model.rows / at.micro / (at.dp if way.rows_of_dp else 1)

    def _parameters(self, at: Layout) -> float:
        return 4 * self.model.d * self.model.f / (at.tp * at.pp)

    def _products(self, at: Layout, way: Way) -> float:
        """The seconds of a micro-batch on the layers of a stage: three products of each."""
        operations = 6 * self._parameters(at) * self._rows(at, way) * way.operations
        share = 11 / 12 if way.first_layer and at.pp == 1 else 1.0
        starts = 3 * 4 / at.pp * self.file["products"]["start"] * way.start
        return share * operations / self.rate + starts

    def _sums_of_tp(self, at: Layout, way: Way) -> float:
        """The seconds of the sums of a micro-batch in the stage that has most of them."""
        sums = 3 / at.pp if way.even_sums else {1: 3, 2: 2, 4: 1}[at.pp]
        nbytes = 4 * self._rows(at, way) * self.model.d
        return sums * sum(self._sum(nbytes, 1, at.tp, way)) * way.sums_of_tp

    def _sums_of_dp(self, at: Layout, way: Way) -> float:
        count = 4 // at.pp if way.by_layer else 1
        inside, between = self._sum(4 * self._parameters(at) / count, at.tp, at.dp, way)
        computed = 3 * self._parameters(at) * self._rows(at, way) * at.micro / self.rate
        hidden = computed if way.hidden else 0.0
        return (count * inside + max(count * between - hidden, 0.0)) * way.sums_of_dp

    def _sum(self, nbytes: float, stride: int, ranks: int, way: Way) -> tuple[float, float]:
        """The seconds of an all-reduce over ranks that are `stride` apart: in nodes, and between
        them."""
        on_node = max(min(ranks, self.a_node // stride), 1)
        nodes, at_once = ranks // on_node, self.a_node // on_node
        near, far = partial(self._message, "near", way), partial(self._message, "far", way)
        inside = 2 * near(nbytes) if on_node > 1 else 0.0
        if way.ring:
            inside = 2 * (on_node - 1) * near(nbytes / on_node)
        between = 2 * (nodes - 1) * far(nbytes / nodes * (at_once if way.shared_link else 1))
        return inside * way.near, between

    def _border(self, at: Layout, number: int, way: Way) -> float:
        """The seconds of a message over the border before stage `number`, from each rank of the
        stage at once."""
        is_inside_a_block = at.pp == 4 and number != 2
        width = self.model.f / at.tp if is_inside_a_block else self.model.d
        nbytes, of_stage = 4 * self._rows(at, way) * width, at.dp * at.tp
        if number * of_stage % self.a_node:
            return self._message("near", way, nbytes)
        at_once = min(of_stage, self.a_node) if way.shared_link else 1
        return self._message("far", way, nbytes * at_once)

    def _message(self, link: str, way: Way, nbytes: float) -> float:
        its = self.file[link if way.far else "near"]
        return float(its["alpha"] * way.alpha + nbytes / (its["bandwidth"] * its["share"]))
