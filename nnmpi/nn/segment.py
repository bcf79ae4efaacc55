"""Segments: a range of nodes of a model's graph, such as a pipeline stage, as a module.

inputs    the tensors that enter the segment; for the first segment, the arguments of the model
steps     modules that lie in the segment as a whole, and the ops of modules that are cut
outputs   the tensors that leave the segment; for the last segment, the outputs of the model
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nnmpi.arrays.kernels import progress_hook
from nnmpi.autograd import apply
from nnmpi.nn.graph import (
    Arguments,
    Call,
    Graph,
    SampleCount,
    TensorRef,
    VariableRef,
    edges_of,
    mapped,
)
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.recompute import Recomputed, as_recomputed
from nnmpi.nn.sequential import Sequential


def segment(model: Module, graph: Graph, nodes: range, holds: Iterable[int] = ()) -> Module:
    """Returns a module that runs the given nodes of a model's graph, for example a pipeline stage.

    It contains the model's own modules, and the parameters and buffers with the numbers `holds`,
    whether it uses them or not; all keep their paths in the model. One chain of layers becomes a
    Sequential, which fuses some. If a module with activation checkpointing is cut, those of its
    parts that return one tensor are checkpointed too.
    """
    modules, calls = dict(model.named_modules()), [*graph.calls]
    divided = [*_divided(graph, nodes, modules)]
    for part in divided if divided != [nodes] else ():
        path = f"nodes {part.start} to {part.stop - 1}"
        modules[path] = segment(model, graph, part)
        arguments, outputs = _inputs_of(graph, part), [*map(TensorRef, _outputs_of(graph, part))]
        result = outputs[0] if len(outputs) == 1 else tuple(outputs)
        calls.append(Call(part, path, None, arguments, result))
    runs = chains(graph, nodes, calls)
    called = [_callable_for(run, modules) for run in runs]
    first, last, module = runs[0][0], runs[-1][-1], called[0]
    is_alone = len(runs) == 1 and _outputs_of(graph, nodes) == edges_of(last.result)
    if not (is_alone and first.is_plain and _inputs_of(graph, nodes) == first.arguments):
        module = Segment(graph, nodes, runs, called, modules)
    assert isinstance(module, Module)
    if divided == [nodes] and len(_outputs_of(graph, nodes)) == 1:
        as_recomputed(module)
    # ops use variables of modules that are cut, so the segment itself has to register them
    ops = (k for run in runs for call in run if call.op for k in call.nodes)
    used = [v for k in ops for v in graph.nodes[k].variables]
    for v in dict.fromkeys([*used, *holds]):
        owner, name = _owner(graph, v, modules)
        if isinstance(getattr(owner, name), Parameter):
            setattr(module, f"variable_{v}", getattr(owner, name))
    return module


def _divided(graph: Graph, nodes: range, modules: Mapping[str, Module]) -> Iterator[range]:
    """Yields the nodes of each checkpointed module that lies only partly in `nodes`."""
    for call in graph.calls:
        if call.path is not None and isinstance(modules[call.path], Recomputed):
            part = range(max(call.nodes.start, nodes.start), min(call.nodes.stop, nodes.stop))
            if 0 < len(part) < len(call.nodes):
                yield part


def chains(graph: Graph, nodes: range, modules: Sequence[Call] = ()) -> list[list[Call]]:
    """Returns the calls that compute the given nodes, as a list of chains: in a chain, each call
    takes the result of the call before, which no other call uses.

    A call computes one node, or all nodes of a call in `modules`. An op, or a module that takes or
    returns several tensors, is a chain of its own.
    """
    runs, users, k = list[list[Call]](), graph.users(), nodes.start
    inside = [
        call for call in modules if call.nodes.start in nodes and call.nodes.stop <= nodes.stop
    ]
    inside = [call for call in inside if _is_closed(graph, call, users)]
    while k < nodes.stop:
        node = graph.nodes[k]
        path = node.name if node.layer else None
        single = Call(range(k, k + 1), path, node.op, node.arguments, node.result)
        starting = (call for call in inside if call.nodes.start == k)
        # the largest module that starts at this node and ends within the segment
        call = max(starting, key=lambda call: call.nodes.stop, default=single)
        last = runs[-1][-1] if runs else None
        follows = (
            last is not None
            and last.is_plain
            and call.is_plain
            and call.inputs == edges_of(last.result)
            and all(user in call.nodes for user in users[call.inputs[0]])
        )
        if follows:
            runs[-1].append(call)
        else:
            runs.append([call])
        k = call.nodes.stop
    return runs


def _is_closed(graph: Graph, call: Call, users: Mapping[int, Sequence[int]]) -> bool:
    """True if the nodes of a module's call can be run by calling it: they take only its arguments
    and what they make, and later nodes (`users`, by edge) take only its result."""
    made = {e for k in call.nodes for e in graph.nodes[k].outputs}
    needed = {e for k in call.nodes for e in graph.nodes[k].inputs}
    outside = {e for e in made if any(k not in call.nodes for k in users[e])}
    return needed - made <= {*edges_of(call.arguments)} and outside <= {*edges_of(call.result)}


def _inputs_of(graph: Graph, nodes: range) -> Arguments:
    """Returns the arguments of a segment of these nodes, with TensorRefs."""
    if nodes.start == 0:
        return graph.arguments
    return tuple(map(TensorRef, graph.crossing(nodes.start))), {}


def _outputs_of(graph: Graph, nodes: range) -> tuple[int, ...]:
    is_last = nodes.stop == len(graph.nodes)
    return graph.outputs if is_last else graph.crossing(nodes.stop)


def _callable_for(run: Sequence[Call], modules: Mapping[str, Module]) -> Callable[..., Any]:
    """Returns what computes the chain of calls: an op, a module or a Sequential."""
    if run[0].op is not None:
        return partial(apply, run[0].op)
    called = [modules[call.path] for call in run if call.path is not None]
    return Sequential(*called) if run[0].is_plain else called[0]


def _owner(graph: Graph, variable: int, modules: Mapping[str, Module]) -> tuple[Module, str]:
    """Returns the module that has this parameter or buffer, and the attribute's name."""
    path, _, name = graph.variables[variable].path.rpartition(".")
    return modules[path], name


class Segment(Module):
    """A module that runs some nodes of a graph, such as those of a pipeline stage."""

    def __init__(
        self,
        graph: Graph,
        nodes: range,
        runs: list[list[Call]],
        called: list[Callable[..., Any]],
        modules: Mapping[str, Module],
    ) -> None:
        for i, call in enumerate(called):
            if isinstance(call, Module):
                setattr(self, f"part_{i}", call)
        self.nodes, self.runs = nodes, runs
        self._arguments, self._returned = _inputs_of(graph, nodes), _outputs_of(graph, nodes)
        takes = edges_of(self._arguments)
        self._counted = [  # (edge, axis, its length per sample): tells the number of samples
            (e, k, a.size)
            for e in takes
            for k, a in enumerate(graph.edges[e].axes)
            if a.of_samples and a.size
        ][:1]
        used = dict.fromkeys(v for k in nodes for v in graph.nodes[k].variables)
        self._owners = {v: _owner(graph, v, modules) for v in used}
        last = {e: i for i, run in enumerate(runs) for e in run[0].inputs}
        kept = {*self._returned}
        self._steps = [  # (call, arguments, result, edges that no later step needs)
            (
                call,
                run[0].arguments,
                run[-1].result,
                tuple(e for e in run[0].inputs if last[e] == i and e not in kept),
            )
            for i, (run, call) in enumerate(zip(runs, called, strict=True))
        ]

    def take_constants(self, graph: Graph) -> None:
        """Updates constants of calls from a new recording, with a changed attribute."""
        for i, (run, step) in enumerate(zip(self.runs, self._steps, strict=True)):
            call, (called, _, result, done) = _call_in(graph, run[0]), step
            if call.op is not None:
                called = partial(apply, call.op)
            self._steps[i] = (called, call.arguments, result, done)
        self.note_change()

    def forward(self, *args: Any, **named: Any) -> Any:
        """Runs the nodes; returns the tensors that leave the segment, one or a tuple."""
        values = _matched({}, self._arguments, (args, named))
        samples = next((values[e].shape[k] // size for e, k, size in self._counted), 0)

        def resolved(part: Any) -> Any:
            if type(part) is TensorRef:
                return values[part.edge]
            if type(part) is VariableRef:
                return getattr(*self._owners[part.variable])
            return part.times * samples if type(part) is SampleCount else part

        progress = progress_hook.get()
        for call, (positional, keywords), result, done in self._steps:
            ordered = [mapped(resolved, part) for part in positional]
            by_name = {name: mapped(resolved, part) for name, part in keywords.items()}
            _matched(values, result, call(*ordered, **by_name))
            for e in done:  # frees their memory
                del values[e]
            progress()
        outputs = tuple(values[e] for e in self._returned)
        return outputs if len(outputs) != 1 else outputs[0]


def _call_in(graph: Graph, call: Call) -> Call:
    """Returns the call in a newer recording that corresponds to `call`."""
    node = graph.nodes[call.nodes.start]
    if call.op is not None or (node.name == call.path and node.layer is not None):
        return call._replace(op=node.op, arguments=node.arguments)
    same = (c for c in graph.calls if (c.path, c.nodes) == (call.path, call.nodes))
    return next(same, call)  # of the part of a module that is cut, which takes tensors only


def _matched(values: dict[int, Any], template: Any, given: Any) -> dict[int, Any]:
    """Adds the tensors in `given` to `values`, by the edge numbers in `template`."""

    if type(template) is TensorRef:  # most calls return one tensor
        values[template.edge] = given
        return values

    def match(part: Any, value: Any) -> None:
        if type(part) is TensorRef:
            values[part.edge] = value

    mapped(match, template, given)
    return values
