"""Machine: the measured speed of nodes and links, and its JSON file."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import inf, sqrt
from os import PathLike
from statistics import geometric_mean
from typing import Any, NamedTuple, Self

from nnmpi import addons
from nnmpi.collectives.price import FAR, NEAR, Link
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import content, parsed

FORMAT = 2
LONGEST = 100_000_000  # bytes of a file
ONCE = "adding", "step", "micro_batch", "spread", "load", "moving"
"""Fields with a single number, which may be 0 but not negative."""


class Curve(NamedTuple):
    """Seconds as a piecewise linear function of a size, extrapolated outside the given points:
    pairs (size, seconds), sizes ascending."""

    points: tuple[tuple[float, float], ...]

    def at(self, size: float) -> float:
        """Returns the seconds for a size; never negative."""
        if len(self.points) == 1:
            return self.points[0][1]
        pieces = [*pairwise(self.points)]
        (a, first), (b, second) = next((p for p in pieces if size <= p[1][0]), pieces[-1])
        return max(first + (size - a) * (second - first) / (b - a), 0.0)


class UnitTimes(NamedTuple):
    """The seconds that a unit of a model takes on this machine for one micro-batch."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def seconds(self) -> float:
        """The seconds of the forward pass and of both kinds of gradients together."""
        return sum(self)


class MeasuredModel(NamedTuple):
    """The measured seconds of a model's units, if its layers are divided among `tp` ranks.

    graph  the hash of the model's graph (`unit_times.signature`)
    units  a dict: number of samples in a micro-batch -> the times of each unit"""

    graph: str
    tp: int
    dtype: str
    units: Mapping[int, Sequence[UnitTimes]]


class Sheet(NamedTuple):
    """Figures of a machine that is described by its data sheet; a measured machine does not have
    them.

    rate            floating-point operations a second that large products reach
    start           extra seconds that each product takes
    bandwidth       bytes a second that kernels read and write
    launch          seconds that the host takes to launch a kernel
    memory          bytes of memory of a rank
    device          cpu or cuda
    flash           True if attention keeps no scores in memory
    hides           kinds of exchanges that run behind computing: tp, dp, zero1, zero3
    divides         axes (only pp) along which all ranks along tp would send the same message, and
                    of which each of them sends a part instead
    tile            rows and columns of a tile, in which outputs of products are computed
    at_once         the number of tiles that are computed at a time
    of_micro_batch  seconds of the host, for each micro-batch, in which the device waits
    of_parameter    seconds of the host, in the update for each parameter of a rank, in which the
                    device waits
    """

    rate: float
    start: float
    bandwidth: float
    launch: float
    memory: float
    device: str
    flash: bool
    hides: tuple[str, ...]
    divides: tuple[str, ...]
    tile: int = 1
    at_once: int = 1
    of_micro_batch: float = 0.0
    of_parameter: float = 0.0


class Machine(NamedTuple):
    """The speed of a node of a machine, with all of its ranks busy.

    cpu          the name of the processor
    ranks        the number of ranks on the node, which were measured together
    near, far    the cost of a message within a node, and between nodes
    adding       seconds to add a byte to another one
    sums         a dict: collective, algorithm and ranks, such as "all_reduce shared 2" -> its
                 seconds as a function of bytes
    updates      a dict: optimizer -> seconds of the update per element
    step         overhead of a step: its seconds without units, exchanges and the update
    micro_batch  overhead of each micro-batch, in seconds
    speed        multiply-adds per second in large layers
    spread       the mean ratio of two measurements of sums or of units, minus 1
    load         the load average before measuring: the number of processes that wanted a core
    moving       seconds in which array functions read or write a byte
    coding       a dict: value of an option that compresses gradients -> seconds per element,
                 besides reading and writing memory
    sheet        the figures of a described machine; None for a measured one
    missing      a dict: field that there was no time to measure -> a description; it has the
                 figures of a typical machine instead
    """

    cpu: str
    ranks: int
    near: Link
    far: Link
    adding: float
    sums: Mapping[str, Curve]
    updates: Mapping[str, float]
    step: float
    micro_batch: float
    speed: float
    models: tuple[MeasuredModel, ...] = ()
    spread: float = 0.0
    load: float = 0.0
    moving: float = 1e-10
    coding: Mapping[str, float] = {}
    sheet: Sheet | None = None
    missing: Mapping[str, str] = {}

    @property
    def doubt(self) -> str:
        """Returns a sentence on how far to trust the figures, by `spread` and `load`."""
        twice = f"measured twice: times differ by {self.spread:.0%} on average"
        load = f"the load average was {self.load:.1f} before"
        return f"{twice if self.spread else 'measured once'}; {load}"

    def joined(self, known: "Machine") -> "Machine":
        """Returns this measurement, completed by an earlier one with models, optimizers, links
        between nodes and figures that were not measured now."""
        late = {name.split()[0] for name in self.missing.keys() - known.missing.keys()}
        late |= {"far"} if self.far == TYPICAL.far else set()
        old = {field for name in late for field in FIELDS.get(name, (name,))}
        first, second = (known, self) if "models" in old else (self, known)
        named = {(m.graph, m.tp, m.dtype) for m in first.models}
        others = (m for m in second.models if (m.graph, m.tp, m.dtype) not in named)
        both = self._replace(
            updates={**known.updates, **self.updates},
            coding={**known.coding, **self.coding},
            missing={name: self.missing[name] for name in self.missing if name in known.missing},
        )
        both = both._replace(**{name: getattr(known, name) for name in old})
        return both._replace(models=(*first.models, *others))

    def as_json(self) -> str:
        """Returns the text of the machine file."""
        fields = {
            **self._asdict(),
            "sums": {name: curve.points for name, curve in self.sums.items()},
            "models": [
                {**m._asdict(), "units": {str(n): rows for n, rows in m.units.items()}}
                for m in self.models
            ],
        }
        del fields["sheet"]  # files are of measured machines
        return json.dumps({"format": FORMAT, **fields}, indent=1)

    @classmethod
    def from_fields(cls, f: Mapping[str, Any]) -> Self:
        """Makes a Machine of a file's fields; earlier versions lack `spread` and `load`."""
        f = {**cls._field_defaults, **f}
        models = tuple(
            MeasuredModel(
                *(m["graph"], m["tp"], m["dtype"]),
                {int(n): [UnitTimes(*row) for row in rows] for n, rows in m["units"].items()},
            )
            for m in f["models"]
        )
        sums = {name: Curve(tuple((x, y) for x, y in row)) for name, row in f["sums"].items()}
        given = {name: f[name] for name in cls._fields if name != "sheet"}
        links = {"near": Link(*f["near"]), "far": Link(*f["far"])}
        machine = cls(**{**given, **links, "sums": sums, "models": models})
        machine.check()
        return machine

    def check(self) -> None:
        """Raises ValueError for impossible figures, such as negative seconds."""
        for name, least, numbers in self._numbers():
            for x in numbers:
                if isinstance(x, bool) or not isinstance(x, int | float) or not least <= x < inf:
                    text = shown(str(x))
                    raise ValueError(f"{name} has {text}, which is not a number of {least} or more")
        for words in self.missing.values():
            if not isinstance(words, str):
                raise ValueError(f"missing has {shown(str(words))}, which is not text")
        if not self.updates:
            raise ValueError("updates has no time of an optimizer")
        for name, curve in self.sums.items():
            sizes = [x for x, _ in curve.points]
            if not sizes or sizes != sorted({*sizes}):
                raise ValueError(f"the sizes of {name} in sums are missing or not ascending")

    def _numbers(self) -> Iterator[tuple[str, int, Iterable[Any]]]:
        """Yields each field's name, least value and values, to check them."""
        yield from (("near", 0, self.near), ("far", 0, self.far))
        yield from ((name, 0, [getattr(self, name)]) for name in ONCE)
        yield from ((name, 1, [getattr(self, name)]) for name in ("ranks", "speed"))
        yield "updates", 0, self.updates.values()
        yield "coding", 0, self.coding.values()
        for curve in self.sums.values():
            yield "sums", 0, chain.from_iterable(curve.points)
        for model in self.models:
            for units in model.units.values():
                yield "models", 0, chain.from_iterable(units)


FIELDS = {
    "near": ("near", "adding"),
    "step": ("step", "micro_batch"),
    "models": ("speed", "models"),
}
"""By measurement, the fields that it gives, where not that of its name."""


def codec_of(config: Config) -> tuple[str, str]:
    """Returns (option, value) by which a config compresses gradients; ("", "") without one."""
    values = ((option, getattr(config, option)) for option in addons.table("codecs"))
    return next(((option, value) for option, value in values if value), ("", ""))


def averaged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Returns measured fields, each the geometric mean of two measurements, or what `first` alone
    has. `spread` says by how much the two differ."""
    fields, spread = dict(first), {"sums": 1.0, "models": 1.0}
    for name in first.keys() & second.keys():
        ratios = list[float]()
        fields[name] = _mean(first[name], second[name], ratios)
        spread[name] = geometric_mean(ratios or [1.0])
    return {**fields, "spread": max(spread["sums"], spread["models"]) - 1}


def _mean(a: Any, b: Any, ratios: list[float]) -> Any:
    """Returns geometric means of nested numbers, of `a` where `b` lacks one; appends `ratios`."""
    if isinstance(a, Mapping):
        return {key: _mean(a[key], b[key], ratios) if key in b else a[key] for key in a}
    if isinstance(a, tuple | list):
        rows = [*(_mean(x, y, ratios) for x, y in zip(a, b, strict=False)), *a[len(b) :]]
        return type(a)(*rows) if hasattr(a, "_fields") else type(a)(rows)
    if a == b:
        return a
    if min(a, b):
        ratios.append(max(a, b) / min(a, b))
    return sqrt(a * b)


def read_machine(path: str | PathLike[str]) -> Machine:
    """Reads a file that nnmpi.measure has written; raises ValueError if there is none, if its
    format is another one, or if figures are missing or impossible."""
    file = f"machine file {shown(path)}"
    text = content(path, file, LONGEST, "make one with python -m nnmpi.measure")
    try:
        fields = parsed(json.loads, text)
        if fields["format"] != FORMAT:
            raise ValueError(f"its format is {fields['format']}, and this version reads {FORMAT}")
        return Machine.from_fields(fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{shown(path)} is not a machine file: {problem}; make one with python -m nnmpi.measure"
        ) from None


TYPICAL = Machine(
    cpu="typical",
    ranks=1,
    near=NEAR,
    far=FAR,
    adding=1e-10,
    sums={},
    updates={"sgd": 1e-9, "adam": 2e-9, "adamw": 2e-9, "rmsprop": 2e-9},
    step=1e-4,
    micro_batch=1e-4,
    speed=3e10,
)
"""A typical machine, where none was measured: a core per rank, 10 Gbit/s."""
