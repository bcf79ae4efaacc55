"""IdleStage: a pipeline stage that computes nothing, in ranks that are built on paper."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nnmpi.arrays.backend import META, Array
from nnmpi.arrays.kernels import Result
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops.norm import Moments
from nnmpi.collectives.algorithms import Collective
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter, inverse
from nnmpi.nn.passes import BatchStats, current_pass
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.facts.passes import STATISTICS, PassExchange
from nnmpi.planning.paper.recording import passes
from nnmpi.schedules.op import Kind

OutputsOf: TypeAlias = Callable[[int], Sequence[Tensor]]
ExchangesOf: TypeAlias = Callable[[int, Kind], Mapping[PassExchange, int]]


class IdleStage(Module):
    """A pipeline stage that computes nothing: its outputs have the right shapes, all its parameters
    get gradients, and statistics of a batch are exchanged as by its layers.

    outputs     (number of samples): makes the output tensors, without data
    exchanges   (number of samples, kind of pass): the exchanges of a pass, with how often
    """

    def __init__(
        self, parameters: Sequence[Parameter], outputs: OutputsOf, exchanges: ExchangesOf
    ) -> None:
        vars(self).update(_outputs=outputs, _exchanges=exchanges)
        for i, p in enumerate(parameters):
            self._parameters[f"variable_{i}"] = vars(self)[f"variable_{i}"] = p

    def forward(self, *inputs: Any) -> Any:
        current = current_pass.get()
        assert current is not None
        assert current.samples is not None
        n, stats = len(current.samples), current.batch_stats
        _statistics(stats, vars(self)["_exchanges"](n, Kind.F))
        sums = partial(_statistics, stats, vars(self)["_exchanges"](n, Kind.B))
        last = Tensor(np.zeros(()))
        for t in (*inputs, *self._parameters.values()):  # so gradients are final one by one
            last = apply(_idle, last, t, value=last.array)
        made = [
            apply(_idle, last, value=t.array, sums=None if k else sums) if t.requires_grad else t
            for k, t in enumerate(vars(self)["_outputs"](n))
        ]
        return made[0] if len(made) == 1 else tuple(made)


def _idle(*arrays: Array, value: Array, sums: Callable[[], None] | None = None) -> Result:
    """An op that computes nothing: it returns `value`. Its gradients have no data; `sums` exchanges
    the statistics of a backward pass."""

    def prepare(g: Array, needs: Sequence[bool]) -> Array:
        if sums:
            sums()
        return g

    return Result(value, (*(partial(_gradient, array) for array in arrays),), prepare)


def _gradient(array: Array, g: Array, out: Array | None) -> Array:
    gradient: Array = META.xp.empty(array.shape, array.dtype) if out is None else out
    return gradient


def _statistics(stats: BatchStats, exchanges: Mapping[PassExchange, int]) -> None:
    """Exchanges the statistics of a batch as a recorded pass has done."""
    for made in Counter({**exchanges}).elements():
        if made.axis == STATISTICS and made.operation is Collective.ALL_GATHER:
            pair = (META.xp.empty((made.elements - 1) // 2, made.dtype) for _ in range(2))
            stats.moments(Moments(2, *pair), lambda summed: None)
        elif made.axis == STATISTICS:
            stats.sum(META.xp.empty(made.elements, made.dtype))


class IdleLoss:
    """Stands for the loss of an IdleStage, whose output is the loss already."""

    def __call__(self, scores: Any, labels: Any) -> Any:
        return scores

    def divisor(self, target: Any) -> float:
        return 1.0


def stage_of(
    a: Arrangement, rank: int, stage: int, parameters: Mapping[int, Parameter]
) -> IdleStage:
    """Returns a pipeline stage of a rank that computes nothing. `parameters` is a dict: number of a
    parameter in the graph -> the parameter."""
    at = a.mesh.coordinates(min(rank, a.mesh.size - 1))
    sent = a.division.stages[stage + 1].takes if stage + 1 < len(a.stages) else ()
    nodes = (a.graph.nodes[k] for k in a.division.stages[stage].nodes)
    in_order = dict.fromkeys(v for node in nodes for v in node.variables)
    of_stage = [parameters[v] for v in in_order if v in parameters]

    def outputs(n: int) -> list[Tensor]:
        if stage + 1 == len(a.stages):
            return [Tensor(np.zeros((), a.updated_dtype), requires_grad=True)]
        made = list[Tensor]()
        for edge, shape in ((a.graph.edges[e], a.local_shape(e, n, at)) for e in sent):
            memory = META.xp.empty([shape[k] for k in edge.order], edge.dtype)
            made.append(Tensor(memory.transpose(inverse(edge.order)), edge.requires_grad))
        return made

    def exchanges(n: int, kind: Kind) -> Mapping[PassExchange, int]:
        return passes(a, rank, stage, n).exchanges.get(kind, {})

    return IdleStage(of_stage, outputs, exchanges)
