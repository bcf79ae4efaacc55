"""Machine: what was measured on a node and on the links between nodes, and the file that holds
it."""

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
"""Fields that hold one number, which may be 0 but not negative."""


class Curve(NamedTuple):
    """Seconds as a function of a size: linear between measured sizes, and extrapolated beyond them.

    points  (size, seconds), sizes ascending
    """

    points: tuple[tuple[float, float], ...]

    def at(self, size: float) -> float:
        """The seconds for a size; never negative."""
        if len(self.points) == 1:
            return self.points[0][1]
        pieces = [*pairwise(self.points)]
        (a, first), (b, second) = next((p for p in pieces if size <= p[1][0]), pieces[-1])
        return max(first + (size - a) * (second - first) / (b - a), 0.0)


class UnitTimes(NamedTuple):
    """The seconds of a unit: its forward pass, the gradient of its input, and those of its
    parameters."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def seconds(self) -> float:
        """The seconds of the unit: forward pass and both kinds of gradients together."""
        return sum(self)


class MeasuredModel(NamedTuple):
    """The measured units of a model whose layers are divided among `tp` ranks.

    units  by samples in a micro-batch, one entry per unit
    """

    graph: str
    tp: int
    dtype: str
    units: Mapping[int, Sequence[UnitTimes]]


class Sheet(NamedTuple):
    """The figures of a described machine that a measured one does not have.

    rate       floating-point operations a second that large products reach
    start      seconds that a product takes besides
    bandwidth  bytes a second that kernels read and write
    launch     seconds in which the host launches a kernel
    memory     bytes of a rank
    device     cpu or cuda
    flash      whether attention keeps no scores in memory
    hides      exchanges that run behind computing: tp, dp, zero1, zero3
    divides    axes along which ranks along tp send a part each of what they all have: pp
    tile       rows and columns of the outputs of products that are computed as one
    at_once    tiles that are computed at a time
    of_micro_batch, of_parameter
               seconds of the host, for each micro-batch and for each parameter of a rank, in which
               the device waits
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
    ranks        how many were measured together, on one node
    near, far    the cost of a message within a node, and between nodes
    adding       seconds to add a byte to another one
    sums         seconds of collectives on a node by bytes: "all_reduce shared 2" of two ranks
    updates      seconds per element, by optimizer
    step         seconds of a step besides units, exchanges and the update
    micro_batch  seconds of each micro-batch besides these
    speed        multiply-adds per second in large layers
    models       the models whose units were measured
    spread       by how much two measurements differ: the mean ratio of sums or of units, less 1
    load         the load average just before: processes that wanted a core
    moving       seconds in which array functions read or write a byte
    coding       seconds per element that codecs of gradients take besides, as options have them
    sheet        of a machine that is described, not measured
    missing      what there was no time to measure, in words; it is as of a typical machine
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
        """The spread and the load in words."""
        twice = f"measured twice: times differ by {self.spread:.0%} on average"
        load = f"the load average was {self.load:.1f} before"
        return f"{twice if self.spread else 'measured once'}; {load}"

    def joined(self, known: "Machine") -> "Machine":
        """This measurement, with the models and optimizers of an earlier one that it lacks, with
        its links between nodes if none were measured now, and with what there was no time for."""
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
        """The text of the machine file."""
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
        """The machine with the fields of a machine file; files of earlier versions lack `spread`
        and `load`."""
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
        """Raises ValueError for figures that no machine has, such as negative seconds."""
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
        """Yields the name of each field, its least allowed value, and its figures."""
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
"""The fields of a Machine that belong to a measurement, where it is not one field of its name."""


def codec_of(config: Config) -> tuple[str, str]:
    """The option that codes gradients for messages, and its value; ("", "") if none does."""
    values = ((option, getattr(config, option)) for option in addons.table("codecs"))
    return next(((option, value) for option, value in values if value), ("", ""))


def averaged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Machine that were measured, with the geometric mean of each figure that was
    measured twice, and with the spread of these."""
    fields, spread = dict(first), {"sums": 1.0, "models": 1.0}
    for name in first.keys() & second.keys():
        ratios = list[float]()
        fields[name] = _mean(first[name], second[name], ratios)
        spread[name] = geometric_mean(ratios or [1.0])
    return {**fields, "spread": max(spread["sums"], spread["models"]) - 1}


def _mean(a: Any, b: Any, ratios: list[float]) -> Any:
    """The geometric mean of numbers at any depth of two equal structures; what b lacks is as in a.
    Appends their ratios to `ratios`."""
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
    """Reads a machine file; raises ValueError if it is not one."""
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
"""Typical figures, for where nothing was measured: one core per rank, 10 Gbit/s between nodes."""
