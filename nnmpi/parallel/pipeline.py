"""Takes the pipeline stages of a rank out of a model, and frees the parameters of other stages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from nnmpi.nn import Module
from nnmpi.nn.graph import Graph, TensorRef, VariableRef, leaves, mapped
from nnmpi.nn.recompute import recompute
from nnmpi.nn.registries import read_attributes
from nnmpi.nn.segment import Segment, segment
from nnmpi.nn.tracing import trace
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.model.parts import ModelPart, boundaries_of


def own_stages(
    model: Module, arrangement: Arrangement, rank: int, facts: Mapping[str, Any]
) -> ModelPart:
    """Returns the ModelPart with a rank's stages; `facts` say how the model was cut."""
    if (how := arrangement.config.recompute) != "none":
        recompute(model, arrangement.graph, how)
    if len(arrangement.division.stages) == 1 and not arrangement.sharding.owned.variables:
        return ModelPart.whole(model)._replace(positions=arrangement.own_positions(rank))
    return _cut(model, arrangement, rank, facts)


def _cut(model: Module, arrangement: Arrangement, rank: int, facts: Mapping[str, Any]) -> ModelPart:
    """Returns the ModelPart of a rank that does not have the whole model."""
    division, graph, owned = arrangement.division, arrangement.graph, arrangement.sharding.owned
    at = arrangement.mesh.coordinates(rank)
    parts_here = division.of_rank(at["pp"])
    stages = {0: model}
    if len(division.stages) > 1:
        stages = {
            s: segment(model, graph, part.nodes, part.variables) for s, part in parts_here.items()
        }
    parameters, held = dict(model.named_parameters()), set[str]()
    for v, ranks in division.ranks().items():
        variable, has = graph.variables[v], owned.has(v, at["tp"])
        if has and at["pp"] in ranks:
            held.update(variable.names)
        elif variable.is_parameter:
            where = f"stage of rank {ranks[0]} along pp"
            where = where if has else f"module of rank {owned.variables[v]} along tp"
            parameters[variable.path].move(OnAnotherRank(variable.path, where), 0)
    return ModelPart(
        model,
        stages,
        held.__contains__,
        [(parameters[path], ranks) for path, ranks in arrangement.tied.items()],
        facts,
        boundaries_of(arrangement, at),
        division.place,
        arrangement.own_positions(rank),
        CutModules(model, graph, stages.values(), arrangement.config.dtype).follow,
    )


class OnAnotherRank:
    """Stands for the memory of a parameter on another rank: every access raises ValueError, with
    the parameter's `path` and `where` it is."""

    def __init__(self, path: str, where: str) -> None:
        self._where = f"{path} is in a {where}, not on this rank"

    def _refuse(self, *arguments: int) -> NoReturn:
        raise ValueError(f"{self._where}: read it there, or from a file written by --save")

    value = grad_memory = fixed_value = fixed_gradient = written = _refuse
    dtype: Any = property(_refuse)
    rotates: Any = property(_refuse)
    is_shared: Any = property(_refuse)


class CutModules:
    """Watches the attributes of modules whose layers are divided among stages: those that `forward`
    has read are constants of the recorded graph, which is recorded again if one is set."""

    def __init__(self, model: Module, graph: Graph, stages: Iterable[Module], dtype: Any) -> None:
        self._graph, self._dtype = graph, dtype
        parts = dict.fromkeys(m for stage in stages for m in stage.modules())
        self._segments = [part for part in parts if isinstance(part, Segment)]
        named = dict(model.named_modules())
        self._cut = {path: named[path] for s in self._segments for path in _cut_by(s, graph)}
        self._modules = [*named.items()]
        self._known = {path: read_attributes(m) for path, m in self._modules}
        self._hooks = {path: m._hooks for path, m in self._cut.items()}
        self._parts = {path: _parts(m) for path, m in self._modules}
        self._seen = self._changes()

    def _changes(self) -> list[int]:
        return [m._changes for _, m in self._modules]

    def follow(self) -> None:
        """Records the graph again if an attribute was set since the last call, and gives the new
        constants to the stages. Raises ValueError if the new graph has other calls."""
        now = self._changes()
        if now == self._seen or not self._segments:
            return
        self._check_parts()
        changed = [*self._set()]
        if changed:
            self._record_with(changed)
        self._seen = now

    def _record_with(self, changed: Sequence[tuple[str, str, Any]]) -> None:
        fresh = self._graph.source.make()
        twins = dict(fresh.named_modules())
        for path, name, value in changed:
            if value is not DELETED:
                object.__setattr__(twins[path], name, value)
            elif name in vars(twins[path]):
                object.__delattr__(twins[path], name)
        graph = trace(fresh, self._graph.source.inputs, self._dtype)
        if _shape_of(graph) != _shape_of(self._graph):
            names = ", ".join(f"{path}.{name}" if path else name for path, name, _ in changed[:3])
            raise ValueError(
                f"with what was set since the start ({names}) the model makes other calls than "
                "those that were divided among pipeline stages: set it before the Trainer is "
                "made, or use a layout without --pp"
            )
        if not _same_arguments(graph, self._graph):
            for part in self._segments:
                part.take_constants(graph)
            self._graph = graph._replace(source=self._graph.source)

    def _check_parts(self) -> None:
        for path, m in self._cut.items():
            if m._hooks != self._hooks[path]:
                raise ValueError(
                    f"{_named(path, m)} has got a hook, but pipeline stages run its layers one by "
                    "one: register hooks before the Trainer is made"
                )
        for path, m in self._modules:
            if _parts(m) != self._parts[path]:
                raise ValueError(
                    f"{_named(path, m)} has got another layer or parameter, but its layers were "
                    "divided among pipeline stages at the start: set them before the Trainer is "
                    "made"
                )

    def _set(self) -> Iterator[tuple[str, str, Any]]:
        """Yields (path of the module, attribute name, value) for each attribute that was set or
        deleted, without those of layers of this library: stages call them as they are."""
        for path, m in self._modules:
            if not m._modules and type(m).__module__.partition(".")[0] == "nnmpi":
                continue
            known, now = self._known[path], read_attributes(m)
            for name in ({**known, **now}).keys() - {"training"}:  # a graph is of both modes
                value = now.get(name, DELETED)
                if known.get(name, DELETED) is not value:
                    yield path, name, value


DELETED = object()
"""Stands for the value of an attribute that was deleted."""


def _parts(module: Module) -> list[tuple[str, int]]:
    """Returns (name, id) of children and parameters, to notice replaced ones."""
    parts = {**module._modules, **module._parameters}
    return [(name, id(part)) for name, part in parts.items()]


def _named(path: str, module: Module) -> str:
    return f"{path} ({type(module).__name__})" if path else type(module).__name__


def _cut_by(segment: Segment, graph: Graph) -> Iterator[str]:
    """Yields modules of which a segment runs single nodes, not `forward`."""
    whole = [call.path for run in segment.runs for call in run if call.path is not None]
    for k in segment.nodes:
        words = graph.nodes[k].within.split(".") if graph.nodes[k].within else []
        for n in range(len(words) + 1):
            path = ".".join(words[:n])
            if not any(path == called or path.startswith(f"{called}.") for called in whole):
                yield path


def _same_arguments(a: Graph, b: Graph) -> bool:
    """Returns True if two graphs with the same calls also pass the same constants to them."""
    of = [[[n.op, n.arguments] for n in g.nodes] + [[c.arguments] for c in g.calls] for g in (a, b)]

    def same(x: Any, y: Any) -> bool:
        return x is y or (type(x) is type(y) and not hasattr(x, "dtype") and bool(x == y))

    return all(same(x, y) for x, y in zip(*map(leaves, of), strict=True))


def _shape_of(graph: Graph) -> Any:
    """Returns a graph's structure, without values of constants, for comparison."""

    def placeholder(value: Any) -> Any:
        if isinstance(value, TensorRef | VariableRef):
            return value
        return float if isinstance(value, int | float) else type(value)

    def of(arguments: Any) -> Any:
        return mapped(placeholder, arguments)

    nodes = [(n.kind, n.within, n.variables, n.result, of(n.arguments)) for n in graph.nodes]
    calls = [(call.path, call.nodes, of(call.arguments)) for call in graph.calls]
    return nodes, calls, graph.edges, graph.outputs
