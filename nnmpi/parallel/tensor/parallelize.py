"""parallelize(model, comm, x) decides how to divide the layers of a model among ranks, and replaces
them by sharded ones, under the same names.

rebuild(model, graph, sharding, comm) only replaces the layers, for a given Sharding.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor, as_tensor
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.layers.basic import ChannelRange
from nnmpi.nn.place import Place, whole
from nnmpi.nn.sequential import forget_steps
from nnmpi.nn.tracing import trace
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.tensor import ops
from nnmpi.parallel.tensor.constraints import Constraints
from nnmpi.parallel.tensor.layers import Sharded
from nnmpi.parallel.tensor.ops import copy_of, part_of, span_of
from nnmpi.parallel.tensor.possible import variables_of
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding
from nnmpi.parallel.tensor.specs import AxisSharded, BySamples, LayerSpec, Replicated, SampleSharded
from nnmpi.parallel.tensor.ways import SAMPLES, SUM_GRADIENT, SUM_OUTPUT, AxisCut, Way

# ---- replacing layers, or changing their class


def become(layer: Module, kind: type[Module], attributes: Mapping[str, Any]) -> None:
    """Changes the class of a layer in place to `kind`, and sets attributes. So its parameters,
    hooks and buffers are kept, and all references to the layer stay valid."""
    layer.__class__ = kind
    for name, value in attributes.items():
        setattr(layer, name, value)


def replace(model: Module, new: Mapping[Module, Module]) -> None:
    """Replaces layers of a model wherever they occur; `new` maps each layer to its replacement."""
    for module in [*dict.fromkeys(model.modules())]:
        for name, child in [*module._modules.items()]:
            if child in new:
                setattr(module, name, new[child])


# ---- cutting a model


def parallelize(
    model: Module,
    comm: Comm,
    x: Any,
    *,
    whole_output: bool = False,
    ways: Mapping[str, str] = {},
) -> Sharding:
    """Divides the layers of a model among the ranks of a Comm so that they send as little as
    possible. Returns a Sharding, which says how the layers are divided.

    x is an array or tensor with some samples, of which only shape and dtype matter. With
    `whole_output` every rank gets all scores, as most losses need them. `ways` names, by path of a
    layer, the way to divide it, such as "column". For a parameter in `Sharding.partial_gradients`,
    such as those of layers cut by samples, each rank gets the gradient of its samples: sum it over
    the ranks before the update.

    Every rank calls it on an equal model. If the model cannot be divided, it raises ValueError and
    leaves the model unchanged. In your own loop, with the same x and y on all ranks:

        sharding = parallelize(model, comm, x)
        loss_of = ShardedCrossEntropyLoss(comm, sharding.output)  # if None: nn.CrossEntropyLoss
        loss = loss_of(model(nnmpi.tensor(x)), y)
    """
    refuse_parts(model)
    sample = as_tensor(x)
    drawn = (p.dtype for p in model.parameters() if p.is_drawn)
    dtype = next(drawn, np.dtype(np.float32))
    kind = dtype if sample.dtype.kind == "f" else sample.dtype

    def zeros(samples: int) -> tuple[tuple[Tensor], dict[str, Any]]:
        return (Tensor(np.zeros((samples, *sample.shape[1:]), kind)),), {}

    graph = all_or_none(comm, lambda: trace(model, zeros, dtype))
    sharding = shard(graph, comm.size, whole_output, constraints=Constraints(ways=ways))
    rebuild(model, graph, sharding, comm)
    modules: dict[str, Any] = dict(model.named_modules())
    for call in sharding.owned.calls.values():
        modules[call.path].drop_others()
    return sharding


def rebuild(model: Module, graph: Graph, sharding: Sharding, comm: Comm) -> None:
    """Replaces the layers of a model by this rank's parts of them, as `sharding` divides them,
    under the same names; raises ValueError, with the model unchanged, if one cannot be.

    Every rank calls it on an equal model. A part gets copies of the layer's weights; of weights
    that are not initialised yet, only this rank's part will be made.
    """
    if comm.size != sharding.ranks:
        raise ValueError(
            f"the model was divided for {sharding.ranks} ranks, but there are {comm.size}: call "
            "shard(graph, comm.size)"
        )
    refuse_parts(model)
    modules = dict(model.named_modules())
    new: dict[Module, Module] = {}
    for at in sharding.layers:
        layer = modules[at.path]
        if not at.way.rebuilds or layer in new or at.way.part is BySamples:
            continue
        if layer is model:
            raise ValueError(
                f"the model is a single {at.kind}, which cannot be replaced in place: make it "
                "nn.Sequential(layer)"
            )
        node = graph.nodes[at.node]
        cuts = {name: sharding.variables.get(v) for name, v in variables_of(graph, node).items()}
        new[layer] = _part(layer, at, sharding.edges.get(node.inputs[0]), cuts, comm)
    replace(model, new)
    for call in sharding.owned.calls.values():
        become(modules[call.path], call.part, {"comm": comm, **call.attributes})
    for at in sharding.layers:
        kind = type(modules[at.path])
        if at.way.part is BySamples and not issubclass(kind, BySamples):  # it keeps its weights
            takes = tuple(e not in sharding.edges for e in graph.nodes[at.node].inputs)
            as_before = {"fuses_as": vars(kind).get("fuses_as", kind)}
            on_samples = type(f"{kind.__name__}OnSamples", (BySamples, kind), as_before)
            options = {"comm": comm, "takes": takes, "gather_output": at.gathers}
            become(modules[at.path], on_samples, options)
    forget_steps(model)  # a Sequential caches which of its layers are fused
    _tie(model, graph)


def refuse_parts(model: Module) -> None:
    """Raises ValueError if a layer of the model is divided among ranks already."""
    leaves = ((path, layer) for path, layer in model.named_modules() if not layer._modules)
    for path, layer in leaves:
        is_part = isinstance(layer, Sharded | BySamples) or isinstance(vars(layer).get("_way"), Way)
        is_part |= any(place.part != whole(place.shape) for place, _ in layer.tensors())
        if is_part:
            raise ValueError(f"layer {path} ({layer!r}) is sharded already: shard a model once")


def _part(
    layer: Module,
    at: ShardedLayer,
    cut: AxisCut | None,
    cuts: Mapping[str, AxisCut | None],
    comm: Comm,
) -> Any:
    """Returns a copy of a layer with this rank's parts of its variables. `at` says how the layer is
    divided, `cut` how its input is, and `cuts`, by name, how its variables are."""
    new: Any = copy(layer)
    new._way = at.way
    start, stop = span_of(at.bounds, comm)
    for name in at.way.sizes:
        if name != "part":
            setattr(new, name, getattr(layer, name) * (stop - start) // at.bounds[-1])
        elif cut is not None:
            new.part, new.axis = ChannelRange(start, stop, at.bounds[-1]), cut.axis
    for name, p in layer._parameters.items():
        cut_of = cuts.get(name)
        own_p = copy_of(p) if cut_of is None else part_of(p, cut_of.axis, cut_of.bounds, comm)
        setattr(new, name, own_p)
    for name in layer._buffers.keys() & at.way.parameters:
        value = getattr(layer, name)._array
        span = list(whole(value.shape))
        span[at.way.parameters[name]] = start, stop
        place = Place("", value.shape, tuple(span))
        new.register_buffer(name, value[place.slices].copy(), place=place)
    if not at.way.pattern.sends and at.way.part is None:
        return new
    part = at.way.part or type(f"Sharded{at.kind}", (_Exchanging, type(layer)), {})
    spec: LayerSpec = SampleSharded(comm) if SAMPLES in at.way.markers else Replicated(comm)
    if at.position_bounds:
        spec = AxisSharded(comm, at.position_bounds)
    own_part = {"comm": comm, "bounds": at.bounds, "gather_output": at.gathers}
    become(new, part, own_part | {"spec": spec})
    return new


class _Exchanging(Sharded):
    """The base class of a rank's part of a layer without a sharded class: calls the layer's own
    `forward` on parts, and sums the output, or the gradient of the input, over ranks if needed."""

    _way: Way
    gather_output: bool

    def forward(self, x: Tensor) -> Tensor:
        if SUM_GRADIENT in self._way.pattern.sends:
            x = ops.copy(x, self.comm)
        y: Tensor = super().forward(x)
        if SUM_OUTPUT in self._way.pattern.sends:
            y = ops.reduce(y, self.comm)
        if not self.gather_output:
            return y
        assert isinstance(self._way.output, int)
        axis = self._way.output + (self._way.output >= 0)  # of the tensor, not of a sample
        return ops.gather(y, self.comm, self.bounds, axis)


def _tie(model: Module, graph: Graph) -> None:
    """Makes all names of a tied parameter refer to one again."""
    modules = dict(model.named_modules())
    for variable in graph.variables:
        places = [path.rpartition(".") for path in variable.names if variable.is_parameter]
        for owner, _, name in places[1:]:
            first = getattr(modules[places[0][0]], places[0][2])
            if getattr(modules[owner], name) is not first:
                setattr(modules[owner], name, first)
