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

Where a layout says so (`--layout`), a layer is computed by samples: each rank has the whole layer,
and some samples of a micro-batch. Any layer can be, since none but BatchNorm mixes samples.

    input      output                           then ranks
    samples    samples    samples               sum the gradients of parameters, once a step
    whole      samples    samples               also gather the gradient of the input
    samples    whole      samples, gathered     also gather the output
    samples    cut        column                gather the input, and reduce-scatter its gradient
    cut        samples    row                   reduce-scatter the output, and gather its gradient

Where a layout says so, images are cut by rows, too (spatial parallelism): each rank has the whole
layer, and some rows of each image.

    input      output                           then ranks
    rows       rows       spatial               exchange the rows that windows need of others, and
                                                their gradients; sum the gradients of parameters,
                                                once a step
    whole      rows       spatial               also gather the gradient of the input
    rows       whole      spatial, gathered     also gather the output
    rows       whole      spatial               sum the means of rows

A new way is an entry of `rules.py`, which may name a pattern of its own (`patterns.py`), and the
class of what a rank has of the layer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nnmpi.nn import Module
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.patterns import (
    COPY,
    PATTERNS,
    POSITIONS,
    SAMPLES,
    Along,
    Marker,
    Pattern,
)

Options = Mapping[str, Any]
"""The plain attributes of a layer."""

NONE: Mapping[str, int] = {}


class AxisCut(NamedTuple):
    """Where a tensor is cut: rank r has bounds[r] to bounds[r + 1] - 1 along an axis.

    axis  of a sample in activations, of the whole tensor in parameters and buffers
    """

    bounds: Bounds
    axis: int


TERMS = AxisCut((), 0)
"""Not cut: a parameter that every rank has whole, of whose gradient each has a term."""

OF_SAMPLES = AxisCut((), -1)
"""An activation of which each rank has some samples, nearly as many as any other: which ones
depends on how many a micro-batch has."""


def always(settings: Options) -> bool:
    """Whatever the settings are."""
    return True


def same(settings: Options, sample: tuple[int, ...], bounds: Bounds) -> Bounds | None:
    """The bounds of an output that has the channels of the input."""
    return bounds


def one(settings: Options, sample: tuple[int, ...]) -> int:
    """Each channel may be alone."""
    return 1


class Way(NamedTuple):
    """One way to divide a layer among ranks; `sharding` of a layer of one's own has some of them.

    input       the axis of a sample along which the input is cut; None: whole; ...: any axis;
                POSITIONS, SAMPLES, IMAGE_ROWS: whole, but that these are divided among the ranks
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
    fits: Callable[[Options], bool] = always
    block: Callable[[Options, tuple[int, ...]], int] = one
    behind: Callable[[Options, tuple[int, ...], Bounds], Bounds | None] = same
    named: Pattern | None = None
    inputs: int = 1
    part: type[Module] | None = None

    @property
    def pattern(self) -> Pattern:
        """What it is called, and what ranks send for it."""
        if self.named is not None:
            return self.named
        i = ... if isinstance(self.input, int) else self.input
        o = ... if isinstance(self.output, int) else self.output
        is_copy = i is None and o in (None, POSITIONS) and not self.parameters
        return COPY if is_copy else PATTERNS.get((i, o), COPY)

    @property
    def markers(self) -> set[Marker]:
        """Whether input or output are cut along positions, samples, or rows of images."""
        return {x for x in (self.input, self.output) if isinstance(x, Marker)}

    @property
    def name(self) -> str:
        """The name of its pattern, and whether one side alone is cut along positions or samples."""
        how, sides = self.pattern.how, {POSITIONS: " of positions", SAMPLES: " of samples"}
        if self.input is self.output or how in ("samples", "spatial"):
            return how
        return how + "".join(sides[m] for m in self.markers)

    @property
    def rebuilds(self) -> bool:
        """Whether another layer takes the place of this one; else it works on a part as it is."""
        return bool(self.part or self.pattern.sends or self.parameters or self.sizes)


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
