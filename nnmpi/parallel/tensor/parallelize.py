"""parallelize: the layers of a Sequential become sharded ones, in place and under their names.

    Linear or Conv2d, input whole       Column: output sharded, no message
    ... local layers                    ReLU, pooling, BatchNorm, GroupNorm of images, Dropout,
                                        Flatten, groups of a convolution: own channels
    Linear or Conv2d, input sharded     Row: output whole, one all-reduce

What needs all features of a sample (LayerNorm, Softmax, ConvTranspose2d, a GroupNorm of which some
group is on two ranks) gets them from a Column that gathers its output. Logits of a Column that is
last stay sharded, unless the output is to be whole.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.nn import (
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    LayerNorm,
    Linear,
    LogSoftmax,
    Module,
    Softmax,
)
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.nn.layers.basic import ALL, Channels
from nnmpi.nn.place import whole
from nnmpi.nn.sequential import flattened, only_runs_layers, put
from nnmpi.parallel.tensor import local
from nnmpi.parallel.tensor.conv import (
    ColumnConv1d,
    ColumnConv2d,
    GroupedConv2d,
    RowConv1d,
    RowConv2d,
)
from nnmpi.parallel.tensor.layers import ColumnLinear, RowLinear, ShardedEmbedding
from nnmpi.parallel.tensor.parts import divided, own
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding
from nnmpi.parallel.tensor.sums import Bounds

NEED_WHOLE = (LayerNorm, Softmax, LogSoftmax, Flatten, ConvTranspose2d)
"""Layers that are kept as they are, on whole samples; Flatten of (C, H, W) on sharded ones too."""


class _Product(NamedTuple):
    """The sharded forms of a layer with a matrix product."""

    column: Any
    row: Any
    axis: int  # of its channels in a sample


PRODUCTS: dict[type[Module], _Product] = {
    Linear: _Product(ColumnLinear, RowLinear, -1),
    Conv1d: _Product(ColumnConv1d, RowConv1d, 0),
    Conv2d: _Product(ColumnConv2d, RowConv2d, 0),
}
"""Of layers without groups: each output needs all inputs."""

SHARDED = {
    ShardedEmbedding,
    GroupedConv2d,
    *(form for p in PRODUCTS.values() for form in (p.column, p.row)),
}

KNOWN = {
    *PRODUCTS,
    *ELEMENTWISE,
    *local.POOLINGS,
    *NEED_WHOLE,
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    Dropout,
    Embedding,
}


def parallelize(model: Module, comm: Comm, *, whole_output: bool = False) -> Sharding:
    """Divides the channels of the layers of a Sequential among the ranks of a Comm.

    With `whole_output` every rank gets all scores, as most losses need them.
    Every rank calls it on an equal model. Weights that are not drawn yet are drawn for this rank's
    part alone; others are cut. Raises ValueError, and leaves the model as it was, if a layer
    cannot be sharded.
    """
    layers = _checked(model)
    steps: list[_Step] = []
    state: local.Activation | None = None
    for i, (path, layer) in enumerate(layers):
        behind = [m for _, m in layers[i + 1 :]]
        steps.append(_step(path, layer, behind, state, comm, whole_output))
        state = steps[-1].state
    for (path, layer), step in zip(layers, steps, strict=True):
        put(model, path, step.layer.train(layer.training))
    return Sharding(tuple(_notes(steps)), None if state is None else state.bounds)


def _notes(steps: Sequence["_Step"]) -> Iterator[ShardedLayer]:
    """What is said of the layers."""
    trained = False
    for step in steps:
        if step.note is not None:
            yield step.note._replace(is_first=not trained)
        trained = trained or any(p.requires_grad for p in step.layer.parameters())


class _Step(NamedTuple):
    """What takes the place of a layer, the activation behind it, and what is said of it."""

    layer: Module
    state: local.Activation | None
    note: ShardedLayer | None = None


def _step(
    path: str,
    layer: Module,
    behind: Sequence[Module],
    state: local.Activation | None,
    comm: Comm,
    whole_output: bool,
) -> _Step:
    what = f"layer {path} ({layer!r})"
    if _is_product(layer) and state is None:
        return _column(path, layer, behind, comm, whole_output)
    if _is_product(layer) and state is not None:
        return _row(path, layer, state, comm)
    if isinstance(layer, Embedding):
        bounds = divided(layer.num_embeddings, comm, what)
        new = ShardedEmbedding.of(layer, comm)
        return _Step(new, None, _note(path, layer, "rows", bounds))
    if state is None:
        has_parameters = any(True for _ in layer.parameters())
        return _Step(layer, None, _note(path, layer, "copy", ()) if has_parameters else None)
    if isinstance(layer, BatchNorm1d | BatchNorm2d):
        bounds = local.scaled(what, state.bounds, layer.num_features)
        norm = local.batch_norm(layer, bounds, comm)
        return _Step(norm, state, _note(path, layer, "channels", bounds))
    if isinstance(layer, GroupNorm):
        group_norm = local.group_norm(layer, state.bounds, comm)
        return _Step(group_norm, state, _note(path, layer, "channels", state.bounds))
    if isinstance(layer, Conv2d):
        after = local.after(layer, state)
        assert after is not None, "the layers before it would have been gathered"
        grouped = GroupedConv2d.of(layer, comm, after.bounds)
        return _Step(grouped, after, _note(path, layer, "channels", after.bounds))
    if isinstance(layer, Dropout):
        part = Channels(*own(state.bounds, comm), state.bounds[-1])
        dropout = Dropout(layer.p, part=part, axis=state.axis)
        return _Step(dropout, state, _note(path, layer, "channels", state.bounds))
    return _Step(layer, local.after(layer, state))


def _column(
    path: str, layer: Any, behind: Sequence[Module], comm: Comm, whole_output: bool
) -> _Step:
    """A Column, which gathers its output if the next layer that is not local needs it whole."""
    kind, outputs = PRODUCTS[type(layer)], layer.weight.shape[0]
    bounds = divided(outputs, comm, f"layer {path} ({layer!r})")
    state = local.Activation(bounds, kind.axis)
    gathers = _is_needed_whole(state, behind, whole_output)
    new = kind.column.of(layer, comm, gathers)
    after = None if gathers else state
    return _Step(new, after, _note(path, layer, "column", bounds, gathers))


def _is_needed_whole(state: local.Activation, behind: Sequence[Module], whole_output: bool) -> bool:
    """Whether the first layer that is not local is none that takes sharded channels.

    `whole_output` is whether what comes behind the last layer is like that.
    """
    for m in behind:
        if _is_product(m) and PRODUCTS[type(m)].axis == state.axis:
            return False
        after = local.after(m, state)
        if after is None:
            return True
        state = after
    return whole_output


def _is_product(layer: Module) -> bool:
    """Whether each of its outputs needs all inputs."""
    return type(layer) in PRODUCTS and getattr(layer, "groups", 1) == 1


def _row(path: str, layer: Any, state: local.Activation, comm: Comm) -> _Step:
    bounds = local.scaled(f"layer {path} ({layer!r})", state.bounds, layer.weight.shape[1])
    new = PRODUCTS[type(layer)].row.of(layer, comm, bounds)
    return _Step(new, None, _note(path, layer, "row", bounds))


def _note(
    path: str, layer: Module, how: str, bounds: Bounds, gathers: bool = False
) -> ShardedLayer:
    weight = getattr(layer, "weight", None)
    sizes = () if weight is None else weight.shape
    return ShardedLayer(path, type(layer).__name__, how, sizes, bounds, gathers)


def _checked(model: Module) -> list[tuple[str, Module]]:
    """The layers; raises ValueError for those of which it is not known how they could be sharded.

    Subclasses may have another `forward`, so only the known types themselves are.
    """
    if not only_runs_layers(model):
        raise ValueError(
            f"a {type(model).__name__} cannot be sharded, since only its forward says how its "
            "layers are connected: make the model an nn.Sequential, or leave out tp"
        )
    layers = list(flattened(model))
    for path, layer in layers:
        if _is_part(layer):
            raise ValueError(f"layer {path} ({layer!r}) is sharded already: shard a model once")
        if type(layer) not in KNOWN:
            raise ValueError(
                f"layer {path} ({type(layer).__name__}) cannot be sharded: it is none of "
                f"{', '.join(sorted(kind.__name__ for kind in KNOWN))}; use these, or leave out tp"
            )
    _refuse_shared(layers)
    return layers


def _is_part(layer: Module) -> bool:
    """Whether it is what `parallelize` puts in the place of a layer."""
    if isinstance(layer, Dropout):
        return layer.part != ALL
    if isinstance(layer, GroupNorm):
        return layer.channels != layer.num_channels
    return type(layer) in SHARDED or any(p.part != whole(p.shape) for p, _ in layer.tensors())


def _refuse_shared(layers: Sequence[tuple[str, Module]]) -> None:
    """Raises ValueError if a parameter, a BatchNorm or a Dropout is used twice.

    One place could need it sharded by rows, and another one by columns.
    """
    uses = Counter(
        id(part)
        for _, layer in layers
        for part in [
            *layer.parameters(),
            *([layer] if isinstance(layer, BatchNorm1d | BatchNorm2d | Dropout) else []),
        ]
    )
    for path, layer in layers:
        if any(uses[id(part)] > 1 for part in [layer, *layer.parameters()]):
            raise ValueError(
                f"layer {path} ({layer!r}) is used twice, or shares a parameter with another "
                "layer, and each use would be sharded in its own way: use a layer of its own in "
                "each place, or leave out tp"
            )
