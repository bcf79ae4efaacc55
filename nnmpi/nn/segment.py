"""Segments: the part of a graph between two cuts, as a module.

takes     the edges that cross into it; the first one, what the model is called with
runs      chains of layers as Sequentials, where some run as one op; ops as they were recorded
returns   the edges that cross out of it; the last one, the outputs of the model
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from nnmpi.autograd import apply
from nnmpi.kernels.progress_hook import progress_hook
from nnmpi.nn.graph import Graph, Node, Samples, Use, Value, rebuilt
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import Sequential


def segment(model: Module, graph: Graph, nodes: range, holds: Iterable[int] = ()) -> Module:
    """A module that runs these nodes of the graph of a model; one chain is a Sequential.

    It has the modules that the model has now under the paths of the graph, and the parameters among
    the variables `holds`, whether it uses them or not. They keep their paths in the model.
    """
    modules, runs = dict(model.named_modules()), chains(graph, nodes)
    first, last = graph.nodes[nodes.start], graph.nodes[nodes.stop - 1]
    called = [_called(graph, run, modules) for run in runs]
    made = called[0]
    is_alone = len(runs) == 1 and _returns(graph, nodes) == last.outputs
    if not (is_alone and _is_plain(first) and _takes(graph, nodes) == first.arguments):
        made = Segment(graph, nodes, runs, called, modules)
    assert isinstance(made, Module)
    ops = (v for k in nodes if graph.nodes[k].layer is None for v in graph.nodes[k].variables)
    for v in dict.fromkeys([*ops, *holds]):
        owner, name = _owner(graph, v, modules)
        if isinstance(getattr(owner, name), Parameter):
            setattr(made, f"variable_{v}", getattr(owner, name))
    return made


def chains(graph: Graph, nodes: range) -> list[range]:
    """Runs of layers of which each takes what the one before returned, and nobody else does.

    An op, or a layer that takes or returns more than one tensor, is alone.
    """
    found, users = list[range](), graph.users()
    for k in nodes:
        before, node = graph.nodes[k - 1], graph.nodes[k]
        follows = (
            k > nodes.start
            and _is_plain(before)
            and _is_plain(node)
            and node.inputs == before.outputs
            and users[node.inputs[0]] == [k]
        )
        if follows:
            found[-1] = range(found[-1].start, k + 1)
        else:
            found.append(range(k, k + 1))
    return found


def _is_plain(node: Node) -> bool:
    """Whether it is a layer that takes one tensor and returns one."""
    args, named = node.arguments
    takes_one = len(args) == 1 and type(args[0]) is Value and not named
    return node.layer is not None and takes_one and type(node.result) is Value


def _takes(graph: Graph, nodes: range) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of the segment, in which tensors are Value."""
    if nodes.start == 0:
        return graph.arguments
    return tuple(map(Value, graph.crossing(nodes.start))), {}


def _returns(graph: Graph, nodes: range) -> tuple[int, ...]:
    is_last = nodes.stop == len(graph.nodes)
    return graph.outputs if is_last else graph.crossing(nodes.stop)


def _called(graph: Graph, run: range, modules: Mapping[str, Module]) -> Callable[..., Any]:
    """What computes a chain: a Sequential, a layer with other arguments, or an op."""
    node = graph.nodes[run.start]
    if node.op is not None:
        return partial(apply, node.op)
    layers = [modules[graph.nodes[k].name] for k in run]
    return Sequential(*layers) if _is_plain(node) else layers[0]


def _owner(graph: Graph, variable: int, modules: Mapping[str, Module]) -> tuple[Module, str]:
    """The module that has a variable, and the name of the attribute."""
    path, _, name = graph.variables[variable].path.rpartition(".")
    return modules[path], name


class _Step(NamedTuple):
    """A call: its arguments and its result, as the graph has them.

    done    edges that nothing needs after it
    """

    call: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    result: Any
    done: tuple[int, ...]


class Segment(Module):
    """Runs some nodes of a graph one after the other."""

    def __init__(
        self,
        graph: Graph,
        nodes: range,
        runs: list[range],
        called: list[Callable[..., Any]],
        modules: Mapping[str, Module],
    ) -> None:
        for i, call in enumerate(called):
            if isinstance(call, Module):
                setattr(self, f"part_{i}", call)
        self._arguments, self._returned = _takes(graph, nodes), _returns(graph, nodes)
        takes = [e for e, _ in _matched(self._arguments, self._arguments)]
        self._counted = [  # edges, axes and how much longer they are than the number of samples
            (e, k, a.size)
            for e in takes
            for k, a in enumerate(graph.edges[e].axes)
            if a.of_samples and a.size
        ][:1]
        used = dict.fromkeys(v for k in nodes for v in graph.nodes[k].variables)
        self._owners = {v: _owner(graph, v, modules) for v in used}
        last = {e: run for run in runs for k in run for e in graph.nodes[k].inputs}
        kept = {*self._returned}
        self._steps = [
            _Step(
                call,
                graph.nodes[run.start].arguments,
                graph.nodes[run.stop - 1].result,
                tuple(e for e in graph.nodes[run.start].inputs if last[e] == run and e not in kept),
            )
            for run, call in zip(runs, called, strict=True)
        ]

    def forward(self, *args: Any, **named: Any) -> Any:
        """The tensor that it returns, or a tuple of them."""
        values = dict(_matched(self._arguments, (args, named)))
        samples = next((values[e].shape[k] // size for e, k, size in self._counted), 0)

        def there(part: Any) -> Any:
            if type(part) is Value:
                return values[part.edge]
            if type(part) is Use:
                return getattr(*self._owners[part.variable])
            return part.times * samples if type(part) is Samples else part

        progress = progress_hook.get()
        for call, arguments, result, done in self._steps:
            ordered, by_name = rebuilt(arguments, there)
            values.update(_matched(result, call(*ordered, **by_name)))
            for e in done:
                del values[e]
            progress()
        found = tuple(values[e] for e in self._returned)
        return found if len(found) != 1 else found[0]


def _matched(template: Any, given: Any) -> Iterator[tuple[int, Any]]:
    """Each edge in nested tuples, lists and dicts, and what is given in its place."""
    if type(template) is Value:
        yield template.edge, given
    elif isinstance(template, Use | Samples):
        return
    elif isinstance(template, Mapping):
        for key, part in template.items():
            yield from _matched(part, given[key])
    elif isinstance(template, tuple | list):
        for part, inside in zip(template, given, strict=True):
            yield from _matched(part, inside)
