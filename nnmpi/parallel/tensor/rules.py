"""Rules: for each kind of layer, the ways in which the ranks along tp may divide it: by channels,
or by positions with `--sequence-parallel`.

A layer without a rule is computed by every rank along tp, from whole inputs. Rules depend only on
the class of a layer, its plain attributes, and shapes.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from nnmpi import nn
from nnmpi.addons import Table
from nnmpi.autograd.ops import activations, elementwise, logic, shape
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.parallel.tensor import layers
from nnmpi.parallel.tensor.conv import ColumnConv1d, ColumnConv2d, RowConv1d, RowConv2d
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.ways import (
    BY_CHANNEL,
    ELEMENTWISE_WAY,
    POSITIONS,
    SAMPLES,
    Options,
    Way,
)


class Signature(NamedTuple):
    """A layer as a sum over indices, as in einsum: the indices of its operands. `*` stands for any
    number of them, `#` for one that is mixed.

    inputs      of each input that has samples
    parameters  of parameters and buffers, by name
    joined      those that ranks may divide though the layer mixes them, and what they exchange then
    behind      the parameters that are added behind the sum
    moves       an index along which inputs and output may be cut while the parameters are cut along
                another: ranks then send each value to the rank that computes with it, and results
                back
    """

    inputs: str
    output: str
    parameters: Mapping[str, str] = {}
    joined: Mapping[str, str] = {}
    behind: tuple[str, ...] = ()
    moves: str = ""


class LayerRule(NamedTuple):
    """The ways in which ranks along tp may divide a layer of one class, the preferred one first;
    and the signature of an add-on's layer, by which `addons/proof/` knows what it sums."""

    ways: tuple[Way, ...] = ()
    signature: Signature | None = None


def _normalizes_positions(settings: Options) -> bool:
    """Returns True if a LayerNorm or RMSNorm normalises over the last axis alone, and so treats
    each position of (N, T, C) separately."""
    return len(settings["normalized_shape"]) == 1


def _has_one_group(settings: Options) -> bool:
    return bool(settings["groups"] == 1)


def _has_groups(settings: Options) -> bool:
    return not _has_one_group(settings)


def _group_of_inputs(settings: Options, sample: tuple[int, ...]) -> int:
    return int(settings["in_channels"] // settings["groups"])


def _groups_of_convolution(settings: Options, sample: tuple[int, ...], bounds: Bounds) -> Bounds:
    return tuple(b * settings["out_channels"] // settings["in_channels"] for b in bounds)


def _group_of_norm(settings: Options, sample: tuple[int, ...]) -> int:
    return int(settings["num_channels"] // settings["num_groups"])


def _of_positions(settings: Options, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """`Way.behind` of GroupNorm and InstanceNorm2d: channels stay where they are cut. None for an
    input (N, C), whose `sample` is (C,): statistics need several positions."""
    return bounds if len(sample) > 1 else None


def _joins_all_axes(settings: Options) -> bool:
    return (settings["start_dim"], settings["end_dim"]) == (1, -1)


def _flattened(settings: Options, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """`Way.behind` of Flatten: each channel of a sample (C, ...) becomes consecutive features."""
    return tuple(b * prod(sample[1:]) for b in bounds)


def _has_many_slopes(settings: Options) -> bool:
    """True if a PReLU has a slope for each channel; of a single one a rank would have a term."""
    return bool(settings["num_parameters"] > 1)


_SCALED = {"weight": 0, "bias": 0}
_STATISTICS = {"running_mean": 0, "running_var": 0}

_COLUMN = Way(None, -1, _SCALED, part=layers.ColumnLinear)
_ROW = Way(-1, None, {"weight": 1}, part=layers.RowLinear)  # its bias is a copy
_GATHERED = _COLUMN._replace(input=POSITIONS, part=layers.GatheringLinear)
_SCATTERED = _ROW._replace(output=POSITIONS)
_OF_SAMPLES = _GATHERED._replace(input=SAMPLES), _ROW._replace(output=SAMPLES)
_COLUMN_2D = Way(None, 0, _SCALED, fits=_has_one_group, part=ColumnConv2d)
_ROW_2D = Way(0, None, {"weight": 1}, fits=_has_one_group, part=RowConv2d)
_COLUMN_1D, _ROW_1D = _COLUMN_2D._replace(part=ColumnConv1d), _ROW_2D._replace(part=RowConv1d)
_ROWS = Way(None, None, {"weight": 0}, part=layers.ShardedEmbedding)
_GROUPS = Way(
    *(0, 0, _SCALED, ("in_channels", "out_channels", "groups"), _has_groups),
    block=_group_of_inputs,
    behind=_groups_of_convolution,
)
_BATCH_NORM = Way(0, 0, _SCALED | _STATISTICS, ("channels",))
_GROUP_NORM = Way(0, 0, _SCALED, ("channels",), block=_group_of_norm, behind=_of_positions)
_NORM = Way(POSITIONS, POSITIONS, fits=_normalizes_positions)
_SLOPES = Way(0, 0, {"weight": 0}, ("num_parameters",), _has_many_slopes)

RULES: Mapping[type[nn.Module], LayerRule] = {
    nn.Linear: LayerRule((_COLUMN, _ROW, _GATHERED, _SCATTERED, *_OF_SAMPLES)),
    nn.Embedding: LayerRule((_ROWS, _ROWS._replace(output=POSITIONS))),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), LayerRule((_NORM,))),
    nn.Conv1d: LayerRule((_COLUMN_1D, _ROW_1D)),
    nn.Conv2d: LayerRule((_COLUMN_2D, _ROW_2D, _GROUPS)),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), LayerRule((_BATCH_NORM,))),
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm2d), LayerRule((_GROUP_NORM,))),
    nn.PReLU: LayerRule((_SLOPES,)),
    nn.ChannelsFirst: LayerRule((Way(-1, 0),)),
    nn.Dropout: LayerRule((Way(..., ..., sizes=("part",)),)),
    nn.Dropout2d: LayerRule((Way(0, 0, sizes=("part",)),)),
    nn.Flatten: LayerRule((Way(0, 0, fits=_joins_all_axes, behind=_flattened),)),
    **dict.fromkeys(
        (nn.MaxPool1d, nn.AvgPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample),
        LayerRule((BY_CHANNEL,)),
    ),
    **dict.fromkeys(ELEMENTWISE, LayerRule((ELEMENTWISE_WAY,))),
}
"""The rule of each layer class, without subclasses: these may differ."""

_OF_ADD_ONS: Table[LayerRule] = Table("layer_rules")
"""By a layer class of an add-on, as "module:name": its rule."""


def rule_of(layer: type[nn.Module]) -> LayerRule | None:
    """Returns a layer class's rule, perhaps an add-on's, or None."""
    return _OF_ADD_ONS.row(f"{layer.__module__}:{layer.__name__}") or RULES.get(layer)


OPS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(elementwise.add, elementwise.subtract, elementwise.multiply, elementwise.divide),
        *(elementwise.remainder, elementwise.floor_divide),
        *(elementwise.power, elementwise.maximum, elementwise.minimum, elementwise.where),
        *(elementwise.negative, elementwise.exp, elementwise.log, elementwise.sqrt),
        *(elementwise.absolute, elementwise.sin, elementwise.cos, elementwise.tanh),
        *(elementwise.sigmoid, elementwise.relu, elementwise.clip, elementwise.astype),
        *(activations.silu, activations.leaky_relu, activations.gelu, activations.gelu_tanh),
        *(activations.elu, activations.softplus),
        *(logic.equal, logic.not_equal, logic.less, logic.less_equal, logic.greater),
        *(logic.greater_equal, logic.bitwise_and, logic.bitwise_or, logic.bitwise_xor),
        *(logic.invert, shape.copy),
    }
)
"""The ops that treat each element separately: if all inputs are cut alike, the output is too."""


def ways(layer: type[nn.Module]) -> tuple[Way, ...]:
    """Returns the ways in which ranks may divide a layer of this class: from `RULES`, or from the
    attribute `sharding` of the class. A subclass that overrides `forward` has none, unless it
    defines the attribute itself."""
    if rule := rule_of(layer):
        return rule.ways
    for kind in layer.__mro__:
        if "sharding" in vars(kind):
            return _checked(kind, vars(kind)["sharding"])
        if "forward" in vars(kind):
            break
    return ()


def _checked(kind: type, given: Any) -> tuple[Way, ...]:
    if isinstance(given, tuple) and given and all(type(way) is Way for way in given):
        return given
    raise ValueError(
        f"{kind.__name__}.sharding is {given!r:.60}: give a tuple of "
        "nnmpi.parallel.tensor.Way, as in sharding = (Way(-1, -1, {'scale': 0}),)"
    )
