"""Rules: what of each layer may be divided among ranks; one table.

    input   output   a rank has                       then ranks sum
    whole   cut      some outputs         column      the gradient of the input
    cut     whole    some inputs          row         the output
    cut     cut      its channels alone   channels    nothing
    whole   whole    some rows of a table rows        both

With sequence parallelism (`--sequence-parallel`) "whole" may be cut along positions instead:

    input      output                           then ranks
    positions  cut        column                gather the input, and reduce-scatter its gradient
    cut        positions  row                   reduce-scatter the output, and gather its gradient
    whole      positions  rows                  the same
    positions  positions  positions             sum the gradients of parameters, once a step
    positions  positions  counts                also tell each other how many tokens chose an expert
    positions  positions  all-to-all            send tokens to their experts, and results back

What has no rule takes whole inputs, and every rank computes all of it. Rules see values only: the
class of a layer, its plain attributes, shapes.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from math import prod
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

from nnmpi import nn
from nnmpi.autograd.ops import activations, elementwise, logic, shape
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.nn.layers.experts import Experts, Router
from nnmpi.parallel.tensor.ops import Bounds

Settings = Mapping[str, Any]
"""The plain attributes of a layer."""

NONE: Mapping[str, int] = {}


class Positions(Enum):
    """The axis of positions: the first of a sample (T, C)."""

    AXIS = 0


POSITIONS = Positions.AXIS
"""As the input or output of a way: cut along positions, which sequence parallelism alone does."""

Along: TypeAlias = int | EllipsisType | Positions | None
"""Where a way has its input or output cut; None: it is whole."""


class Cut(NamedTuple):
    """Where a tensor is cut: rank r has bounds[r] to bounds[r + 1] - 1 along an axis.

    axis  of a sample in activations, of the whole tensor in parameters and buffers
    """

    bounds: Bounds
    axis: int


TERMS = Cut((), 0)
"""Not cut: a parameter that every rank has whole, of whose gradient each has a term."""


def always(settings: Settings) -> bool:
    """Whatever the settings are."""
    return True


def same(settings: Settings, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """The bounds of an output that has the channels of the input."""
    return bounds


def one(settings: Settings, sample: tuple[int, ...]) -> int:
    """Each channel may be alone."""
    return 1


class Way(NamedTuple):
    """One way to divide a layer among ranks; `sharding` of a layer of one's own has some of them.

    input       the axis of a sample along which the input is cut; None: whole; ...: any axis;
                POSITIONS: whole, but that its positions are divided among the ranks
    output      the same of the output; ... is that of the input
    parameters  the axis along which each parameter or buffer is cut, by name; others are whole
    sizes       attributes that count channels, of which a part has its share
    fits        whether a layer with these settings can be divided so
    block       how many channels of the input, in a row, have to be on one rank; of the shape of a
                whole sample of the input
    behind      the bounds of the output, from that shape and the bounds of the channels of the
                input; None if a part does not have all that it needs
    named       the name of a way that is none of those above
    inputs      how many tensors the layer is called with; of several, all are whole, or all are
                cut alike, as along positions
    """

    input: Along = None
    output: Along = None
    parameters: Mapping[str, int] = NONE
    sizes: tuple[str, ...] = ()
    fits: Callable[[Settings], bool] = always
    block: Callable[[Settings, tuple[int, ...]], int] = one
    behind: Callable[[Settings, tuple[int, ...], Bounds], Bounds | None] = same
    named: str = ""
    inputs: int = 1

    @property
    def how(self) -> str:
        """The name of the way."""
        if self.named:
            return self.named
        if self.input is self.output is POSITIONS:
            return "positions"
        if self.input not in (None, POSITIONS):
            return "row" if self.output in (None, POSITIONS) else "channels"
        if self.output not in (None, POSITIONS):
            return "column"
        return "rows" if self.parameters else "copy"

    @property
    def form(self) -> str:
        """The name of the way, and whether one side of it is cut along positions."""
        on_one_side = (self.input is POSITIONS) != (self.output is POSITIONS)
        return self.how + " of positions" * on_one_side

    @property
    def has_positions(self) -> bool:
        """Whether input or output are cut along positions."""
        return POSITIONS in (self.input, self.output)

    @property
    def sums_output(self) -> bool:
        """Whether each rank has a term of the output, and all of them get the sum."""
        return self.how in ("row", "rows") and self.output is None

    @property
    def sums_gradient(self) -> bool:
        """Whether each rank has a term of the gradient of the input, and all get the sum."""
        return self.how in ("column", "rows") and self.input is None

    @property
    def rebuilds(self) -> bool:
        """Whether another layer takes the place of this one; else it works on a part as it is."""
        as_it_is = self.how in ("channels", "positions", "copy", "branch", "branches")
        return not as_it_is or bool(self.parameters or self.sizes)


WHOLE = Way()
"""Every rank computes all of it."""

OF_BRANCH = Way(named="branch")
"""One rank computes all of it: see `branches.py`."""

BRANCHES = Way(named="branches")
"""The join of what ranks have computed alone."""

KEPT = Way(..., ...)
"""Each number is treated alone."""

BY_CHANNEL = Way(0, 0)
"""Each channel of a sample (C, ...) is treated alone, without parameters."""


def _product(axis: int, fits: Callable[[Settings], bool] = always) -> tuple[Way, ...]:
    """The ways of a layer each of whose outputs needs all inputs; the bias of a row is a copy."""
    return (
        Way(None, axis, {"weight": 0, "bias": 0}, fits=fits),
        Way(axis, None, {"weight": 1}, fits=fits),
    )


def _of_last_axis(settings: Settings) -> bool:
    return len(settings["normalized_shape"]) == 1


def _has_one_group(settings: Settings) -> bool:
    return bool(settings["groups"] == 1)


def _has_groups(settings: Settings) -> bool:
    return not _has_one_group(settings)


def _group_of_inputs(settings: Settings, sample: tuple[int, ...]) -> int:
    return int(settings["in_channels"] // settings["groups"])


def _groups_of_convolution(settings: Settings, sample: tuple[int, ...], bounds: Bounds) -> Bounds:
    return tuple(b * settings["out_channels"] // settings["in_channels"] for b in bounds)


def _group_of_norm(settings: Settings, sample: tuple[int, ...]) -> int:
    return int(settings["num_channels"] // settings["num_groups"])


def _of_positions(settings: Settings, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """The bounds; None if the sample is features, of (N, C)."""
    return bounds if len(sample) > 1 else None


def _head(settings: Settings, sample: tuple[int, ...]) -> int:
    """The query, the key and the value of a head."""
    return int(sample[-1] // settings["num_heads"])


def _of_values(settings: Settings, sample: tuple[int, ...], bounds: Bounds) -> Bounds:
    """The output has the size of the values, a third of the input."""
    return tuple(b // 3 for b in bounds)


def _joins_all_axes(settings: Settings) -> bool:
    return (settings["start_dim"], settings["end_dim"]) == (1, -1)


def _flattened(settings: Settings, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """Each channel becomes several features in a row."""
    return tuple(b * prod(sample[1:]) for b in bounds)


def _has_many_slopes(settings: Settings) -> bool:
    """Whether each channel has its own slope; of one for all, ranks would have parts of a sum."""
    return bool(settings["num_parameters"] > 1)


POOLINGS = (nn.MaxPool1d, nn.AvgPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)

_STATISTICS = {"weight": 0, "bias": 0, "running_mean": 0, "running_var": 0}
_BATCH_NORM = Way(0, 0, _STATISTICS, ("channels",))
_GROUPS = Way(
    0,
    0,
    {"weight": 0, "bias": 0},
    ("in_channels", "out_channels", "groups"),
    _has_groups,
    _group_of_inputs,
    _groups_of_convolution,
)
_GROUP_NORM = Way(
    *(0, 0, {"weight": 0, "bias": 0}, ("channels",)), block=_group_of_norm, behind=_of_positions
)
_OF_EXPERTS = {"weight1": 0, "bias1": 0, "weight2": 0, "bias2": 0}
_HEADS = Way(-1, -1, sizes=("num_heads", "part"), block=_head, behind=_of_values)

RULES: Mapping[type[nn.Module], tuple[Way, ...]] = {
    nn.Linear: (
        *_product(-1),
        Way(POSITIONS, -1, {"weight": 0, "bias": 0}),
        Way(-1, POSITIONS, {"weight": 1}),
    ),
    nn.Embedding: (Way(None, None, {"weight": 0}), Way(None, POSITIONS, {"weight": 0})),
    Experts: (
        Way(None, None, _OF_EXPERTS, inputs=2),
        Way(POSITIONS, POSITIONS, _OF_EXPERTS, inputs=2, named="all-to-all"),
    ),
    Router: (Way(POSITIONS, POSITIONS, named="counts"),),
    nn.PositionalEmbedding: (Way(POSITIONS, POSITIONS, {"weight": 0}),),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), (Way(POSITIONS, POSITIONS, fits=_of_last_axis),)),
    nn.Conv1d: _product(0, _has_one_group),
    nn.Conv2d: (*_product(0, _has_one_group), _GROUPS),
    nn.BatchNorm1d: (_BATCH_NORM,),
    nn.BatchNorm2d: (_BATCH_NORM,),
    nn.GroupNorm: (_GROUP_NORM,),
    nn.InstanceNorm2d: (_GROUP_NORM,),
    nn.PReLU: (Way(0, 0, {"weight": 0}, ("num_parameters",), _has_many_slopes),),
    nn.SelfAttention: (_HEADS,),
    nn.ChannelsFirst: (Way(-1, 0),),
    nn.Dropout: (Way(..., ..., sizes=("part",)),),
    nn.Dropout2d: (Way(0, 0, sizes=("part",)),),
    nn.Flatten: (Way(0, 0, fits=_joins_all_axes, behind=_flattened),),
    **dict.fromkeys((*POOLINGS, nn.Upsample), (BY_CHANNEL,)),
    **dict.fromkeys(ELEMENTWISE, (KEPT,)),
}
"""The ways of each layer, the preferred one first, by its class itself: a subclass may have another
`forward`."""

OPS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(elementwise.add, elementwise.subtract, elementwise.multiply, elementwise.divide),
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
"""Ops that treat each number alone: inputs that are cut alike give an output that is, too."""


def ways(layer: type[nn.Module]) -> tuple[Way, ...]:
    """The ways of a layer: of the table, or `sharding` of its class.

    A class that has another `forward` than the one with the attribute has none.
    """
    if layer in RULES:
        return RULES[layer]
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
