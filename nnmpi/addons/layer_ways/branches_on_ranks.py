"""Parallel branches of a model (a Branches module) divided among ranks: each branch is computed by
one rank, and a join (sum, mean, concat or stack) combines their outputs.

                    rank 0   a ──┐
    x on all ranks               ├──► one message ──► y on all ranks
                    rank 1   b, c┘

    join            forward                          backward
    sum, mean       all-reduce of the output         all-reduce of the gradient of x
    concat, stack   all-gather of the outputs        the same

Branches are assigned in the order of their size, the largest first: each to the rank with the
fewest parameters so far, of equal ones to the rank with the fewest branches, then to the lowest
rank. Branches that share parameters go to one rank. Ranks without a branch only take part in the
join.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.layer_ways.branch_ops import (
    PUT_TOGETHER,
    SUMS,
    divide,
    part_of_gradient,
    put_together,
)
from nnmpi.addons.layer_ways.branches import Branches
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.recording import TapeNode, recording
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.graph import Call, Edge, Graph, edges_of, leaves
from nnmpi.nn.parameter import inverse
from nnmpi.parallel.tensor.ops import all_gather, all_reduce, copy, memory_order
from nnmpi.parallel.tensor.sharding import (
    DividedCall,
    OwnedParts,
    ShardedLayer,
    message_of,
    outermost,
    overlapping,
)
from nnmpi.parallel.tensor.ways import GATHER_OUTPUT, SUM_GRADIENT, SUM_OUTPUT, Pattern, Way


class BranchCall(NamedTuple):
    """A call of a Branches module in the graph of a model, whose branches are divided among ranks.

    owners   the rank of each branch, in order
    nodes    the graph nodes of each branch
    inputs   the input edges (activations) of the call
    outputs  the output edge of each branch
    result   the output edge of the join
    """

    path: str
    join: str
    owners: tuple[int, ...]
    nodes: tuple[range, ...]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    result: Edge

    @property
    def node(self) -> int:
        """The index of the graph node that joins the outputs of the branches."""
        return self.nodes[-1].stop

    def gathered(self, ranks: int) -> tuple[int, ...]:
        """Returns ranks + 1 bounds for the all-gather that joins the branches' outputs: rank r
        contributes elements bounds[r] to bounds[r + 1] - 1 of a sample."""
        sizes = [0] * ranks
        for owner, edge in zip(self.owners, self.outputs, strict=True):
            sizes[owner] += edge.elements
        return tuple(accumulate(sizes, initial=0))

    def as_given(self, x: Array) -> "BranchCall":
        """Returns this call with its output in the dtype of x: the graph may say a 16-bit type
        while x is still float32, because parameters have not been converted yet."""
        if x.dtype == self.inputs[0].dtype or x.dtype != types_of(np.dtype(self.result.dtype)).sums:
            return self
        return self._replace(result=self.result._replace(dtype=x.dtype.name))


def divide_branches(graph: Graph, ranks: int) -> OwnedParts:
    """Assigns the branches of all Branches modules to ranks, balancing the number of parameters,
    equally on every rank. Raises ValueError if a branch shares a parameter with a layer outside of
    the branches."""
    calls: dict[str, list[Call]] = {}
    for call in (call for call in outermost(graph) if call.layer is Branches):
        assert call.path is not None
        calls.setdefault(call.path, []).append(call)
    by_node, nodes, variables = dict[int, DividedCall](), dict[int, int](), dict[int, int]()
    for path, module_calls in calls.items():
        inside = [_nodes_of_branches(graph, call) for call in module_calls]
        used = [{v for k in branch for v in graph.nodes[k].variables} for branch in inside[0]]
        _refuse_shared(graph, path, used, {k for call in module_calls for k in call.nodes})
        sizes = [sum(graph.variables[v].size for v in branch) for branch in used]
        owners = owners_of(sizes, used, ranks)
        for call, branches in zip(module_calls, inside, strict=True):
            node = graph.nodes[branches[-1].stop]
            outputs = tuple(graph.edges[value.edge] for value in node.arguments[0])
            inputs = tuple(graph.edges[e] for e in edges_of(call.arguments))
            (result,) = (graph.edges[e] for e in node.outputs)
            join = node.arguments[1]["join"]
            branch_call = BranchCall(path, join, owners, tuple(branches), inputs, outputs, result)
            by_node[branch_call.node] = _divided(branch_call, ranks)
            for owner, branch, held in zip(owners, branches, used, strict=True):
                nodes |= dict.fromkeys(branch, owner)
                variables |= dict.fromkeys(held, owner)
    return OwnedParts(by_node, nodes, variables)


JOIN = Way(named=Pattern("branches"))
"""The join of branches that ranks have computed alone; its messages depend on the call."""


def _divided(call: BranchCall, ranks: int) -> DividedCall:
    nodes, layers = range(call.nodes[0].start, call.node), tuple(_join_layers(call, ranks))
    return DividedCall(call.path, "branches", nodes, layers, BranchesOnRanks, {"call": call})


def _join_layers(call: BranchCall, ranks: int) -> list[ShardedLayer]:
    """Returns entries with the messages of a divided Branches module: the first with that which
    joins the outputs, and each with the sum of the gradient of an input that needs one."""
    why = "a branch is whole on one rank"
    join = ShardedLayer(call.node, call.path, "Branches", JOIN, why=why)
    joins = message_of(SUM_OUTPUT, call.result.elements)
    if call.join not in SUMS:
        join = join._replace(bounds=call.gathered(ranks))
        joins = message_of(GATHER_OUTPUT, join.bounds[-1], join.bounds)
    back = [message_of(SUM_GRADIENT, e.elements) for e in call.inputs if e.requires_grad]
    first = join._replace(sends=(joins, *back[:1]))
    return [first, *(join._replace(sends=(message,)) for message in back[1:])]


def _nodes_of_branches(graph: Graph, call: Call) -> list[range]:
    """Returns each branch's nodes in a call; the last node of all joins them."""
    makers = {e: k for k in call.nodes for e in graph.nodes[k].outputs}
    ranges, start = [], call.nodes.start
    for value in graph.nodes[call.nodes[-1]].arguments[0]:
        stop = max(makers.get(value.edge, start - 1) + 1, start)
        ranges.append(range(start, stop))
        start = stop
    ranges[-1] = range(ranges[-1].start, call.nodes[-1])
    return ranges


def _refuse_shared(graph: Graph, path: str, used: Sequence[set[int]], inside: set[int]) -> None:
    outside = (k for k in range(len(graph.nodes)) if k not in inside)
    for k in outside:
        for v in graph.nodes[k].variables:
            if any(v in branch for branch in used):
                raise ValueError(
                    f"{graph.variables[v].path} is used in a branch of {path or 'the model'}, "
                    f"which only one rank along tp has, and by {graph.nodes[k].name} outside: use "
                    "a separate parameter there, or --tp 1"
                )


def owners_of(sizes: Sequence[int], used: Sequence[set[int]], ranks: int) -> tuple[int, ...]:
    """Returns the rank of each branch, such that ranks have about equally many parameters. `sizes`
    has the number of elements of each branch's parameters, and `used` the parameters' numbers."""
    groups = overlapping(used)
    load, count, owners = [0] * ranks, [0] * ranks, [0] * len(sizes)
    for members in sorted(groups, key=lambda group: (-sum(sizes[i] for i in group), group)):
        r = min(range(ranks), key=lambda r: (load[r], count[r], r))
        load[r] += sum(sizes[i] for i in members)
        count[r] += len(members)
        for i in members:
            owners[i] = r
    return tuple(owners)


# ---- the layer


class BranchesOnRanks(Branches):
    """A Branches module whose branches are on ranks; all get the output."""

    comm: Comm
    call: BranchCall

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        given, comm, call = self.given(inputs, named), self.comm, self.call
        distinct = {id(x): x for args in given.values() for x in args}
        needed = [x for x in distinct.values() if isinstance(x, Tensor) and x.requires_grad]
        entered = {id(x): copy(x, comm) for x in needed}  # gradients are summed over ranks
        outputs = []
        for (name, branch), owner in zip(self.items(), call.owners, strict=True):
            if owner == comm.rank:
                outputs.append(branch(*(entered.get(id(x), x) for x in given[name])))
        array = next(x.array for x in leaves((inputs, named)) if isinstance(x, Tensor))
        samples = len(array) // call.inputs[0].axes[0].size
        call = call.as_given(array)
        # each rank must join the all-reduce of each input's gradient, whatever branches it runs
        ends = [*entered.values()]
        if call.result.requires_grad and not ends:
            ends = [
                Tensor(xp_of(array).zeros(0, call.result.dtype))
            ]  # a dummy, so that the join runs backward
            if recording.get():
                ends[0].requires_grad, ends[0].node = True, TapeNode(ends[0], (), (), ())
        options = {"join": self.join, "axis": self.dim, "comm": comm, "call": call}
        return apply(joined_on_ranks, *outputs, *ends, **options, samples=samples, xp=xp_of(array))

    def drop_others(self) -> None:
        """Replaces other ranks' branches by placeholders, and frees their parameters."""
        for name, owner in zip([*self], self.call.owners, strict=True):
            if owner != self.comm.rank:
                self[name] = BranchOnAnotherRank(owner)

    def extra_repr(self) -> str:
        pairs = zip(self, self.call.owners, strict=True)
        where = ", ".join(f"{name} on rank {owner}" for name, owner in pairs)
        return f"{super().extra_repr()}, {where}"


class BranchOnAnotherRank(Module):
    """A placeholder for a branch that another rank computes."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def extra_repr(self) -> str:
        return f"rank {self.rank}"


def joined_on_ranks(
    *inputs: Array, join: str, axis: int, comm: Comm, call: BranchCall, samples: int, xp: Any
) -> Result:
    """Returns the join of the outputs of branches, of which this rank has computed some: `inputs`
    are these outputs, followed by those inputs of branches that need a gradient. To the latter the
    join gives the gradient 0, so that a rank without branches takes part in their sums."""
    local_branches = [i for i, owner in enumerate(call.owners) if owner == comm.rank]
    parts, ends = inputs[: len(local_branches)], inputs[len(local_branches) :]
    none = [lambda g, out, like=(x.shape, x.dtype): xp.zeros(*like) for x in ends]
    if join in PUT_TOGETHER:
        arrays = _all_gathered(parts, call, comm, samples, xp)
        shapes = [array.shape for array in arrays]
        vjps = [part_of_gradient(shapes, join, axis, i) for i in local_branches]
        return Result(put_together(arrays, join, axis), (*vjps, *none))
    y = parts[0].copy(order="K") if parts else _zeros(call.result, samples, xp)
    for part in parts[1:]:
        y += part
    all_reduce(y, comm)
    same = [lambda g, out: g] * len(parts)
    return Result(y, (*same, *none), divide(y, join, len(call.owners)))


def _zeros(edge: Edge, samples: int, xp: Any) -> Array:
    """Returns zeros like an activation for so many samples, in its order."""
    shape, order = edge.shape(samples), memory_order(len(edge.axes))
    return xp.zeros([shape[k] for k in order], np.dtype(edge.dtype)).transpose(inverse(order))


def _all_gathered(
    outputs_here: Sequence[Array], call: BranchCall, comm: Comm, samples: int, xp: Any
) -> list[Array]:
    """All-gathers the outputs of branches from this rank's; returns them in the order of
    branches."""
    at = [b * samples for b in call.gathered(comm.size)]
    nothing = xp.empty(0, np.dtype(call.result.dtype))
    row = xp.concatenate([nothing, *(part.reshape(-1) for part in outputs_here)])
    buffer, outputs = all_gather(row, comm, tuple(at), 0), list[Array]()
    for edge, owner in zip(call.outputs, call.owners, strict=True):
        shape = edge.shape(samples)
        outputs.append(buffer[at[owner] : at[owner] + prod(shape)].reshape(shape))
        at[owner] += prod(shape)
    return outputs
