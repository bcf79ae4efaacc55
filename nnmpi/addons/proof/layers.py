"""Derives what the ranks along an axis of the mesh have of the gradients of one layer's parameters,
and which exchanges its passes need, by the rule of `signatures.py`."""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from nnmpi.addons.proof.placement import Placement
from nnmpi.addons.proof.signatures import MIXED, SAMPLES, of_rank, signature
from nnmpi.nn.graph import Node
from nnmpi.parallel.tensor.rules import Signature
from nnmpi.parallel.tensor.sharding import pooling_behind
from nnmpi.schedules.lists.step_list import ScheduleError


class Share(Enum):
    """The part of a tensor that a rank has, of those along one axis.

    WHOLE   each rank has all of it
    CUT     each rank has a part of it
    TERM    each rank has a term of the sum that it is
    """

    WHOLE = "whole"
    CUT = "cut"
    TERM = "term"


class Due(NamedTuple):
    """An exchange that a layer makes due in the passes of its stage.

    way        "F" in forward passes, "B" in backward passes
    operation  the collective, or what is exchanged, such as "moments"
    edges      the numbers of the activations, which one exchange takes together
    why        a text for messages
    """

    stage: int
    way: str
    axis: str
    operation: str
    edges: tuple[int, ...]
    why: str
    node: int


class GradientShare(NamedTuple):
    """The share of a gradient along one axis, and a text that says why."""

    share: Share
    why: str


class Layer:
    """A layer whose work ranks along an axis share.

    index   the index of which each rank computes some values, None if each computes all; it is that
            of a cut weight, else of a cut input, else of the output
    due     the exchanges that its passes need
    may     exchanges that only repeat an earlier one, instead of keeping its result
    """

    def __init__(self, place: Placement, stage: int, k: int, axis: str) -> None:
        self._stage, self._axis, self._k = stage, axis, k
        self._place, self._graph = place, place.graph
        self.due, self.may = list[Due](), list[Due]()
        self._node = node = self._graph.nodes[k]
        self._cuts, self._held = self._place.cuts[axis], self._place.held[axis]
        self._sum = signature(self._graph, node, place.ways.get(k)) or _EACH_SAMPLE
        self._names = dict(self._named(node))
        self._inputs = [(e, self._indices(e, self._sum.inputs)) for e in node.inputs]
        self._output = node.outputs[0]
        self._out = self._indices(self._output, self._sum.output)
        self.index = self._index() if self._place.sizes[axis] > 1 else None
        self._natural = self._of_output()
        self._exchanges()

    def _named(self, node: Node) -> Iterator[tuple[int, str]]:
        """Yields the parameters and buffers of a node, and their names in it."""
        for v in node.variables:
            for name in self._graph.variables[v].names:
                of, _, last = name.rpartition(".")
                if of == node.name:
                    yield v, last

    def _indices(self, e: int, indices: str) -> str:
        edge, axes = self._graph.edges[e], len(self._graph.edges[e].axes)
        if not edge.of_samples:  # such as a mask, or the states of an LSTM, (layers, N, ...)
            return "".join(SAMPLES if axis.of_samples else MIXED for axis in edge.axes)
        return (of_rank(indices, axes) + MIXED * axes)[:axes]

    def _of(self, v: int) -> str:
        """Returns the indices of a parameter; those without a name here are mixed."""
        axes = len(self._graph.variables[v].shape)
        return (self._sum.parameters.get(self._names.get(v, ""), "") + MIXED * axes)[:axes]

    def _fail(self, text: str) -> ScheduleError:
        name = " ".join(dict.fromkeys((self._node.kind, self._node.name)))
        return ScheduleError(f"{name}, along {self._axis}: {text}")

    def _index(self) -> str | None:
        behind = self._sum.behind
        held = [v for v in self._node.variables if v in self._held]
        weights = [self._of(v)[self._held[v]] for v in held if self._names.get(v) not in behind]
        inputs = [of[self._cuts[e]] for e, of in self._inputs if e in self._cuts]
        outputs = [self._out[self._cuts[self._output]]] if self._output in self._cuts else []
        of_samples = [SAMPLES] if self._k in self._place.shared[self._axis] else []
        cut = weights or inputs or outputs or of_samples
        if len({*cut}) > 1:
            raise self._fail(f"operands are cut along different indices, {' and '.join(cut)}")
        if cut and cut[0] == MIXED:
            raise self._fail("ranks cut an index of which this layer needs all values")
        return cut[0] if cut else None

    def _of_output(self) -> Share | int | None:
        """Returns what a rank computes of the output: all (None), a term, or a part along a
        dimension."""
        if self.index is None:
            return None
        return self._out.index(self.index) if self.index in self._out else Share.TERM

    def _row(self, way: str, operation: str, why: str, *edges: int) -> Due:
        of = f"{why} of {self._label}"
        return Due(self._stage, way, self._axis, operation, edges, of, self._k)

    def _note(self, way: str, operation: str, why: str, *edges: int) -> None:
        self.due.append(self._row(way, operation, why, *edges))

    @property
    def _label(self) -> str:
        return self._node.name or self._node.kind

    def _exchanges(self) -> None:
        """Notes which exchanges are due, since an operand is not where it is needed."""
        if self._place.sizes[self._axis] == 1:
            return
        moved = self._sum.moves
        if moved and any(of[self._cuts[e]] == moved for e, of in self._inputs if e in self._cuts):
            for way in "FB":
                self._note(
                    way, "messages", "ranks send values to those that use them", self._output
                )
            return
        copies = [
            e
            for e, of in self._inputs
            if self._needed(of) is None and e not in self._cuts and not self._is_of_parameters(e)
        ]
        if self.index and (terms := [e for e in copies if self._graph.edges[e].requires_grad]):
            self._note("B", "all_reduce", f"each rank computes some {self.index}", *terms)
        for e, of in self._inputs:
            self._input(e, self._needed(of))
        if joined := self._sum.joined.get(self.index or ""):
            for way in "FB":
                self._note(way, joined, "values of all ranks are input", self._output)
        self._of_outputs()

    def _is_of_parameters(self, e: int) -> bool:
        """True for an activation without samples, such as a product of parameters. Replicas leave
        its gradient a term, and sum those of the parameters."""
        has_samples = any(axis.of_samples for axis in self._graph.edges[e].axes)
        return self._axis != "tp" and self._place.sizes[self._axis] > 1 and not has_samples

    def _needed(self, of: str) -> int | None:
        """Returns the dimension along which an operand of these indices has to be cut, or None."""
        return of.index(self.index) if self.index and self.index in of else None

    def _input(self, e: int, needed: int | None) -> None:
        has, has_gradient = self._cuts.get(e), self._graph.edges[e].requires_grad
        if has == needed:
            return
        if needed is None:
            self._note("F", "all_gather", "the whole input", e)
            if self._sum.parameters and self._sum.behind:
                self.may.append(self._row("B", "all_gather", "the whole input again", e))
            if has_gradient and self.index:
                self._note("B", "reduce_scatter", "terms of the gradient of the input", e)
        elif has is None:
            if has_gradient:
                self._note("B", "all_gather", "the parts of the gradient of the input", e)
        else:
            raise self._fail(f"its input is cut along dimension {has}, but it needs {needed}")

    def _of_outputs(self) -> None:
        e, natural = self._output, self._natural
        has, has_gradient = self._cuts.get(e), self._graph.edges[e].requires_grad
        if natural == has:
            return
        if natural is Share.TERM:
            operation = "all_reduce" if has is None else "reduce_scatter"
            self._note("F", operation, f"terms, a sum over {self.index}, are the output", e)
            if has is not None and has_gradient:
                self._note("B", "all_gather", "the gradient of the whole output", e)
        elif has is None:
            pool = pooling_behind(self._graph, self._k)  # it runs as one with this layer
            gathered = e if pool is None else self._graph.nodes[pool].outputs[0]
            self._note("F", "all_gather", "the parts of the output", gathered)
        elif natural is None:
            if has_gradient:
                self._note("B", "all_gather", "parts of the gradient of the output", e)
        else:
            raise self._fail(f"its output is cut along dimension {has}, but it makes {natural}")

    # ---- parameters

    def parameters(self) -> Iterator[tuple[int, GradientShare]]:
        """Yields what a rank has of the gradient of each trained parameter."""
        for v in self._node.variables:
            index = self._index_of(v)
            share = self._share(v, index)
            why = f"{self._label} has {share.value} values"
            if share is Share.TERM:
                of = _WORDS.get(index, index) if index else "values of parameters alone"
                why = f"{self._label} computes some {of} on each rank"
            if self._graph.variables[v].is_trained:
                yield v, GradientShare(share, why)

    def _index_of(self, v: int) -> str | None:
        """Returns the index of which a rank computes some values where it uses a parameter."""
        if self._names.get(v) not in self._sum.behind or self._natural is not Share.TERM:
            return self.index
        has = self._cuts.get(self._output)  # a bias is added to what the sum leaves here
        return None if has is None else self._out[has]

    def _share(self, v: int, index: str | None) -> Share:
        if index is None:
            return Share.TERM if self._is_of_parameters(self._output) else Share.WHOLE
        of = self._of(v)
        if index not in of:
            return Share.TERM
        if v not in self._held:  # each rank uses some rows of a whole table
            return Share.TERM
        if self._held[v] != of.index(index):
            path = self._graph.variables[v].path
            raise self._fail(f"{path} is cut along dimension {self._held[v]}")
        return Share.CUT


_EACH_SAMPLE = Signature(SAMPLES, SAMPLES)

_WORDS = {
    "n": "samples",
    "t": "positions",
    "x": "rows",
    "c": "channels",
    "i": "inputs",
    "o": "outputs",
    "h": "heads",
    "e": "experts",
    "v": "rows of its table",
}
"""The meaning of letters in signatures, for messages."""
