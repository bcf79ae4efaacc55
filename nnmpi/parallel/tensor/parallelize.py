"""parallelize: the layers of a Sequential become sharded ones, in place and under their names.

    Linear or Conv2d, input whole       Column: output sharded, no message
    ... local layers                    ReLU, pooling, BatchNorm, Dropout, Flatten: own channels
    Linear or Conv2d, input sharded     Row: output whole, one all-reduce

What needs all features of a sample (LayerNorm) gets them from a Column that gathers its output.
Logits of a Column that comes last stay sharded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nnmpi.comm import Comm
from nnmpi.nn import (
    GELU,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    LogSoftmax,
    MaxPool2d,
    Module,
    ReLU,
    Sigmoid,
    Tanh,
)
from nnmpi.nn.layers import ALL, Channels
from nnmpi.nn.place import whole
from nnmpi.nn.sequential import flattened, only_runs_layers
from nnmpi.parallel.tensor.layers import (
    ColumnConv2d,
    ColumnLinear,
    RowConv2d,
    RowLinear,
    ShardedEmbedding,
)
from nnmpi.parallel.tensor.parts import divided, own, part_of
from nnmpi.parallel.tensor.sharding import ShardedLayer, Sharding
from nnmpi.parallel.tensor.sums import Bounds

ELEMENTWISE = (ReLU, GELU, Sigmoid, Tanh)
ON_IMAGES = (MaxPool2d, AvgPool2d)
NEED_WHOLE = (LayerNorm, LogSoftmax, Flatten)
"""Layers that are kept as they are; Flatten of (C, H, W) into channels keeps them sharded too."""


class _Product(NamedTuple):
    """The sharded forms of a layer with a matrix product."""

    column: Any
    row: Any
    axis: int  # of its channels in a sample


PRODUCTS: dict[type[Module], _Product] = {
    Linear: _Product(ColumnLinear, RowLinear, -1),
    Conv2d: _Product(ColumnConv2d, RowConv2d, 0),
}

SHARDED = {ShardedEmbedding, *(form for p in PRODUCTS.values() for form in (p.column, p.row))}

KNOWN = {
    *PRODUCTS,
    *ELEMENTWISE,
    *ON_IMAGES,
    *NEED_WHOLE,
    BatchNorm1d,
    BatchNorm2d,
    Dropout,
    Embedding,
}


class _Channels(NamedTuple):
    """What is known of a sharded activation.

    `axis` of a sample: 0 in images (C, H, W), -1 in features. A channel may be several features in
    a row, behind Flatten.
    """

    bounds: Bounds
    axis: int


def parallelize(model: Module, comm: Comm) -> Sharding:
    """Divides the channels of the layers of a Sequential among the ranks of a Comm.

    Every rank calls it on an equal model. Weights that are not drawn yet are drawn for this rank's
    part alone; others are cut. Raises ValueError, and leaves the model as it was, if a layer
    cannot be sharded.
    """
    layers = _checked(model)
    steps: list[_Step] = []
    state: _Channels | None = None
    for i, (path, layer) in enumerate(layers):
        steps.append(_step(path, layer, [m for _, m in layers[i + 1 :]], state, comm))
        state = steps[-1].state
    for (path, layer), step in zip(layers, steps, strict=True):
        _put(model, path, step.layer.train(layer.training))
    return Sharding(tuple(_noted(steps)), None if state is None else state.bounds)


def _noted(steps: Sequence["_Step"]) -> Iterator[ShardedLayer]:
    """What is said of the layers."""
    trained = False
    for step in steps:
        if step.done is not None:
            yield step.done._replace(is_first=not trained)
        trained = trained or any(p.requires_grad for p in step.layer.parameters())


class _Step(NamedTuple):
    """What takes the place of a layer, the activation behind it, and what is said of it."""

    layer: Module
    state: _Channels | None
    done: ShardedLayer | None = None


def _step(
    path: str, layer: Module, behind: Sequence[Module], state: _Channels | None, comm: Comm
) -> _Step:
    what = f"layer {path} ({layer!r})"
    if type(layer) in PRODUCTS and state is None:
        return _column(path, layer, behind, comm)
    if type(layer) in PRODUCTS and state is not None:
        return _row(path, layer, state, comm)
    if isinstance(layer, Embedding):
        bounds = divided(layer.num_embeddings, comm, what)
        new = ShardedEmbedding.of(layer, comm)
        return _Step(new, None, _done(path, layer, "rows", bounds))
    if state is None:
        return _Step(layer, None, _done(path, layer, "copy", ()) if layer.parameters() else None)
    if isinstance(layer, BatchNorm1d | BatchNorm2d):
        bounds = _scaled(what, state.bounds, layer.num_features)
        norm = _batch_norm(layer, bounds, comm)
        return _Step(norm, state, _done(path, layer, "channels", bounds))
    if isinstance(layer, Dropout):
        part = Channels(*own(state.bounds, comm), state.bounds[-1])
        dropout = Dropout(layer.p, part=part, axis=state.axis)
        return _Step(dropout, state, _done(path, layer, "channels", state.bounds))
    return _Step(layer, _behind(layer, state))


def _column(path: str, layer: Any, behind: Sequence[Module], comm: Comm) -> _Step:
    """A Column, which gathers its output if the next layer that is not local needs it whole."""
    kind, outputs = PRODUCTS[type(layer)], layer.weight.shape[0]
    bounds = divided(outputs, comm, f"layer {path} ({layer!r})")
    state = _Channels(bounds, kind.axis)
    gathers = _is_needed_whole(state, behind)
    new = kind.column.of(layer, comm, gathers)
    after = None if gathers else state
    return _Step(new, after, _done(path, layer, "column", bounds, gathers))


def _is_needed_whole(state: _Channels, behind: Sequence[Module]) -> bool:
    """Whether the first layer that is not local is none that takes sharded channels."""
    for m in behind:
        if type(m) in PRODUCTS and PRODUCTS[type(m)].axis == state.axis:
            return False
        after = _behind(m, state)
        if after is None:
            return True
        state = after
    return False


def _row(path: str, layer: Any, state: _Channels, comm: Comm) -> _Step:
    bounds = _scaled(f"layer {path} ({layer!r})", state.bounds, layer.weight.shape[1])
    new = PRODUCTS[type(layer)].row.of(layer, comm, bounds)
    return _Step(new, None, _done(path, layer, "row", bounds))


def _behind(layer: Module, state: _Channels) -> _Channels | None:
    """The activation behind a layer that works on each channel alone; None if it does not."""
    kind, images = type(layer), state.axis == 0
    if kind in ELEMENTWISE or kind is Dropout:
        return state
    if images and (kind in ON_IMAGES or kind is BatchNorm2d):
        return state
    if not images and kind is BatchNorm1d:
        return state
    if images and isinstance(layer, Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        return state._replace(axis=-1)
    return None


def _scaled(what: str, bounds: Bounds, features: int) -> Bounds:
    """The bounds of features of which each channel has equally many, in a row."""
    channels = bounds[-1]
    if features % channels:
        raise ValueError(
            f"{what}: it takes {features} features, and the layers before it have {channels} "
            "channels, of which each must become equally many; let the sizes fit"
        )
    return tuple(b * (features // channels) for b in bounds)


def _batch_norm(layer: BatchNorm1d | BatchNorm2d, bounds: Bounds, comm: Comm) -> Module:
    affine, (start, stop) = layer.weight is not None, own(bounds, comm)
    new = type(layer)(layer.num_features, layer.eps, layer.momentum, affine, part=(start, stop))
    new.weight = part_of(layer.weight, 0, bounds, comm)
    new.bias = part_of(layer.bias, 0, bounds, comm)
    for name in ("running_mean", "running_var"):
        setattr(new, name, getattr(layer, name)[start:stop].copy())
    new.num_batches_tracked = layer.num_batches_tracked.copy()
    return new


def _done(
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


def _put(model: Module, path: str, layer: Module) -> None:
    """Make a layer the one under this path."""
    *above, name = path.split(".")
    for part in above:
        model = model._modules[part]
    setattr(model, name, layer)
