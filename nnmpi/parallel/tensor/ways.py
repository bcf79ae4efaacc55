"""Ways: how a layer may be cut among the ranks along tp, and what they send for it.

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

A new way is a row here, or an entry of `rules.py` that names its own pattern, and the class of the
part of a layer; a new collective has a price in `arrangement/traffic_tp.py` besides.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

from nnmpi.nn import Module
from nnmpi.parallel.tensor.messages import (
    COUNTS,
    GATHER_GRADIENT,
    GATHER_GRADIENT_OF_ROWS,
    GATHER_INPUT,
    GRADIENTS_OF_RESULTS,
    GRADIENTS_OF_TOKENS,
    RESULTS,
    SCATTER_GRADIENT,
    SCATTER_OUTPUT,
    SUM_GRADIENT,
    SUM_OUTPUT,
    TOKENS,
    Message,
)
from nnmpi.parallel.tensor.ops import Bounds

Settings = Mapping[str, Any]
"""The plain attributes of a layer."""

NONE: Mapping[str, int] = {}


class Marker(Enum):
    """What a way may have in place of an axis."""

    POSITIONS = 0


POSITIONS = Marker.POSITIONS
"""As the input or output of a way: cut along positions, the first axis of a sample (T, C), which
sequence parallelism alone does."""

Along: TypeAlias = int | EllipsisType | Marker | None
"""Where a way has its input or output cut; None: it is whole."""


class AxisCut(NamedTuple):
    """Where a tensor is cut: rank r has bounds[r] to bounds[r + 1] - 1 along an axis.

    axis  of a sample in activations, of the whole tensor in parameters and buffers
    """

    bounds: Bounds
    axis: int


TERMS = AxisCut((), 0)
"""Not cut: a parameter that every rank has whole, of whose gradient each has a term."""


class Pattern(NamedTuple):
    """What a way is called, and what ranks send for it.

    how           its name
    sends         the messages, in the order in which they are told
    divides       whether it cuts what is not cut in its input: channels, or rows of a table
    of_positions  whether one side is cut along positions, and the other one along channels
    """

    how: str
    sends: tuple[Message, ...] = ()
    divides: bool = False
    of_positions: bool = False


COPY = Pattern("copy")
COLUMN = Pattern("column", (SUM_GRADIENT,), divides=True)
ROW = Pattern("row", (SUM_OUTPUT,))
ROWS = Pattern("rows", (SUM_OUTPUT, SUM_GRADIENT), divides=True)
CHANNELS = Pattern("channels")
COLUMN_OF_POSITIONS = Pattern("column", (GATHER_INPUT, SCATTER_GRADIENT), True, True)
ROW_OF_POSITIONS = Pattern("row", (SCATTER_OUTPUT, GATHER_GRADIENT), of_positions=True)
ROWS_OF_POSITIONS = Pattern("rows", (SCATTER_OUTPUT, GATHER_GRADIENT_OF_ROWS), True, True)
ALONE = Pattern("positions")
OF_COUNTS = Pattern("counts", (COUNTS,))
ALL_TO_ALL = Pattern(
    "all-to-all", (TOKENS, RESULTS, GRADIENTS_OF_RESULTS, GRADIENTS_OF_TOKENS), divides=True
)

PATTERNS: Mapping[tuple[Along, Along], Pattern] = {
    (None, ...): COLUMN,
    (..., None): ROW,
    (None, None): ROWS,
    (..., ...): CHANNELS,
    (POSITIONS, ...): COLUMN_OF_POSITIONS,
    (..., POSITIONS): ROW_OF_POSITIONS,
    (None, POSITIONS): ROWS_OF_POSITIONS,
    (POSITIONS, None): ROWS_OF_POSITIONS,  # refused of a layer of somebody's own
    (POSITIONS, POSITIONS): ALONE,
}
"""The pattern of a way that names none, by its input and output; ...: cut along some axis."""


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
    named       the pattern of a way that is none of `PATTERNS`
    inputs      how many tensors the layer is called with; of several, all are whole, or all are
                cut alike, as along positions
    part        the class of what a rank has of the layer, whose own ops send the messages; None:
                the layer itself, with them before and behind its `forward`
    """

    input: Along = None
    output: Along = None
    parameters: Mapping[str, int] = NONE
    sizes: tuple[str, ...] = ()
    fits: Callable[[Settings], bool] = always
    block: Callable[[Settings, tuple[int, ...]], int] = one
    behind: Callable[[Settings, tuple[int, ...], Bounds], Bounds | None] = same
    named: Pattern | None = None
    inputs: int = 1
    part: type[Module] | None = None

    @property
    def pattern(self) -> Pattern:
        """What it is called, and what ranks send for it."""
        if self.named is not None:
            return self.named
        i, o = (x if x is None or x is POSITIONS else ... for x in (self.input, self.output))
        found = PATTERNS[i, o]
        return found if self.parameters or found not in (ROWS, ROWS_OF_POSITIONS) else COPY

    @property
    def how(self) -> str:
        """The name of the way."""
        return self.pattern.how

    @property
    def name(self) -> str:
        """The name of the way, and whether one side of it is cut along positions."""
        return self.how + " of positions" * self.pattern.of_positions

    @property
    def has_positions(self) -> bool:
        """Whether input or output are cut along positions."""
        return POSITIONS in (self.input, self.output)

    @property
    def sums_output(self) -> bool:
        """Whether each rank has a term of the output, and all of them get the sum."""
        return SUM_OUTPUT in self.pattern.sends

    @property
    def sums_gradient(self) -> bool:
        """Whether each rank has a term of the gradient of the input, and all get the sum."""
        return SUM_GRADIENT in self.pattern.sends

    @property
    def rebuilds(self) -> bool:
        """Whether another layer takes the place of this one; else it works on a part as it is."""
        return bool(self.pattern.sends or self.parameters or self.sizes)

    @property
    def fuses(self) -> bool:
        """Whether the part of a rank runs as one op with what follows where the layer does."""
        return self.part is None or "fuses_as" in vars(self.part)


WHOLE = Way()
"""Every rank computes all of it."""

OF_BRANCH = Way(named=Pattern("branch"))
"""One rank computes all of it: see `branches.py`."""

BRANCHES = Way(named=Pattern("branches"))
"""The join of what ranks have computed alone, whose messages depend on the call."""

KEPT = Way(..., ...)
"""Each number is treated alone."""

BY_CHANNEL = Way(0, 0)
"""Each channel of a sample (C, ...) is treated alone, without parameters."""
