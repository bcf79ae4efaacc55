"""Description: a machine as its data sheet describes it, read from TOML. It has peak rates, and the
assumed share of each peak that programs reach.

nnmpi/addons/planning/described/NAME.toml ─┐
a user's FILE.toml ─────────────────┴─► Description ─► Machine
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.addons.planning.exchange_time import curve_name
from nnmpi.addons.planning.machine import TYPICAL, Curve, Machine, Sheet, read_machine
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.price import Link, Network
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import content, parsed
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS

FOLDER = Path(__file__).parent
LONGEST = 1_000_000  # bytes of a file
MOST_RANKS = 1 << 20  # of a node

HALVES = "float16", "bfloat16"
TYPES = *HALVES, "float32", "float64"

BYTES_UPDATED = {"sgd": 20, "adam": 28, "adamw": 28, "rmsprop": 20}
"""By optimizer, the bytes that an update moves for each float32 element."""

NO_MOMENTUM = {"sgd": 12}
"""Bytes per element of the update of an optimizer without momentum, which then has no state."""

HIDDEN = {
    "tp": "exchanges along tp",
    "dp": "exchanges along dp",
    "zero1": "gathers of ZeRO 1 and 2",
    "zero3": "gathers and scatters of ZeRO 2 and 3 within passes",
}
"""Exchanges that a machine may run behind computing: name in a file, and meaning."""

DIVIDED = ("pp",)
"""Axes whose messages are equal on all ranks along tp, which may send a part each."""


class Description(NamedTuple):
    """A machine as its data sheet describes it. The fields are those of its TOML file:
    `products_share` is `share` in the table `[products]`. Others are in `machine.Sheet`.

    title       the name in full
    ranks       the number of ranks on a node
    peak        a dict: type -> the most floating-point operations a second; n multiply-adds are 2 n
    products    matrix products: `share` of the peak that large ones reach; `start`, extra seconds
                of each; `tile`, rows and columns of an output tile; `at_once`, tiles at a time
    memory      of a rank: `size` in bytes; `bandwidth` in bytes a second; the `share` reached
    kernel      `launch`: seconds that the host takes to launch one, while the device computes
    host        seconds in which the device waits for the host: for each micro-batch, and in the
                update for each parameter of a rank
    near        link between ranks of a node: `alpha`, seconds of a message; `bandwidth`, bytes a
                second; the `share` of it that is reached
    far         the same for each of the `nics` links of a node to others
    sums        published all-reduces on a node: number of ranks -> seconds as a function of bytes
    """

    title: str
    ranks: int
    device: str
    flash: bool
    hides: tuple[str, ...]
    divides: tuple[str, ...]
    peak: Mapping[str, float]
    products_share: float
    products_start: float
    memory_size: float
    memory_bandwidth: float
    memory_share: float
    kernel_launch: float
    near_alpha: float
    near_bandwidth: float
    near_share: float
    far_alpha: float
    far_bandwidth: float
    far_nics: int
    far_share: float
    sums: Mapping[int, Curve] = {}
    products_tile: int = 1
    products_at_once: int = 1
    host_micro_batch: float = 0.0
    host_parameter: float = 0.0

    def rate(self, dtype: str) -> float:
        """Returns the operations a second of large products; ValueError for an unknown type."""
        if dtype not in self.peak:
            known = ", ".join(self.peak)
            raise ValueError(f"{self.title} has no peak of {dtype}: use --dtype {known}")
        return self.peak[dtype] * self.products_share

    @property
    def moved(self) -> float:
        """The bytes per second that kernels move: bandwidth times the share they reach."""
        return self.memory_bandwidth * self.memory_share

    @property
    def near(self) -> Link:
        """The link between ranks of a node."""
        return Link(self.near_alpha, 1 / (self.near_bandwidth * self.near_share))

    @property
    def far(self) -> Link:
        """The link between nodes, with the bandwidth of all of a node's interfaces."""
        return Link(self.far_alpha, 1 / (self.far_bandwidth * self.far_nics * self.far_share))

    def machine(self, dtype: str, momentum: float = 0.9) -> Machine:
        """Returns the Machine for models of type `dtype`; SGD without momentum updates faster."""
        numbers = BYTES_UPDATED if momentum else BYTES_UPDATED | NO_MOMENTUM
        wide = 2 if dtype == "float64" else 1
        extra = 4 if dtype in HALVES else 0  # a 16-bit gradient is read, a copy written
        names = (
            (curve_name(Collective.ALL_REDUCE, algorithm, p), curve)
            for p, curve in self.sums.items()
            for algorithm in ("ring", "shared", *LIBRARY_SUMS.where)
        )
        return TYPICAL._replace(
            cpu=self.title,
            ranks=self.ranks,
            near=self.near,
            far=self.far,
            adding=0.0,
            sums=dict(names),
            updates={name: (wide * n + extra) / self.moved for name, n in numbers.items()},
            step=0.0,
            micro_batch=0.0,
            speed=self.rate(dtype) / 2,
            moving=1 / self.moved,
            sheet=Sheet(
                rate=self.rate(dtype),
                start=self.products_start,
                bandwidth=self.moved,
                launch=self.kernel_launch,
                memory=self.memory_size,
                device=self.device,
                flash=self.flash,
                hides=self.hides,
                divides=self.divides,
                tile=self.products_tile,
                at_once=self.products_at_once,
                of_micro_batch=self.host_micro_batch,
                of_parameter=self.host_parameter,
            ),
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Description":
        """Makes a Description of a TOML file's content; ValueError names a wrong field."""
        for table in TABLES:
            if not isinstance(fields.get(table), dict):
                raise ValueError(f"the table [{table}] is missing")
        flat = dict(_flat(fields))
        if unknown := [path for path in flat if path.replace(".", "_", 1) not in CHECKS]:
            known = ", ".join(map(_path, CHECKS))
            raise ValueError(f"{shown(unknown[0])} is no field; {known} are")
        values = dict[str, Any]()
        for name, check in CHECKS.items():
            values[name] = flat.get(_path(name), cls._field_defaults.get(name))
            if values[name] is None:
                raise ValueError(f"{_path(name)} is missing")
            try:
                holds = check.holds(values[name])
            except (AttributeError, TypeError, ValueError):
                holds = False
            if not holds:
                raise ValueError(f"{_path(name)} is {shown(repr(values[name]))}: give {check.give}")
        for name in ("hides", "divides"):
            values[name] = tuple(values[name])
        curves = values["sums"].items()
        values["sums"] = {int(p): Curve(tuple((x, y) for x, y in rows)) for p, rows in curves}
        return cls(**values)


# ---- fields


def _path(name: str) -> str:
    """Converts a field's name to its path in the file: near_alpha to near.alpha."""
    return name.replace("_", ".", 1)


def _flat(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (path, value), such as ("near.alpha", 1e-6). The tables `peak` and `sums` are single
    values, since their keys are not fields."""
    for name, value in fields.items():
        if isinstance(value, dict) and name not in ("peak", "sums"):
            yield from ((f"{name}.{inner}", item) for inner, item in value.items())
        else:
            yield name, value


class Check(NamedTuple):
    """The condition that a field of a machine's file must meet, and what an error says to give."""

    holds: Callable[[Any], bool]
    give: str


def _is(value: Any, above: float = 0.0, most: float = inf) -> bool:
    """True if the value is a finite number with above < value <= most."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and above < value <= most and value < inf


def _are_curves(value: Any) -> bool:
    """True for a dict such as {"8": [[bytes, seconds], ...]} with ascending bytes."""
    sizes = [[x for x, y in rows if _is(x) and _is(y)] for rows in value.values()]
    is_whole = [len(n) for n in sizes] == [*map(len, value.values())]
    return (
        is_whole
        and all(p.isdecimal() for p in value)
        and all(n and n == sorted({*n}) for n in sizes)
    )


POSITIVE = Check(_is, "a number above 0")
SECONDS = Check(lambda v: _is(v) or (v == 0 and v is not False), "a number of 0 or more")
SHARE = Check(lambda v: _is(v, most=1.0), "a number above 0 and at most 1")
WHOLE = Check(lambda v: _is(v, most=MOST_RANKS) and isinstance(v, int), "a whole number above 0")

CHECKS = {
    "title": Check(lambda v: isinstance(v, str) and bool(v), "the name of the machine in full"),
    "ranks": WHOLE,
    "device": Check(lambda v: v in ("cpu", "cuda"), "cpu or cuda"),
    "flash": Check(lambda v: isinstance(v, bool), "true or false"),
    "hides": Check(lambda v: {*v} <= {*HIDDEN}, f"a list of some of {', '.join(HIDDEN)}"),
    "divides": Check(lambda v: {*v} <= {*DIVIDED}, f"a list of some of {', '.join(DIVIDED)}"),
    "peak": Check(
        lambda v: bool(v) and {*v} <= {*TYPES} and all(map(_is, v.values())),
        f"operations a second by type, of {', '.join(TYPES)}",
    ),
    **dict.fromkeys(("products_share", "memory_share", "near_share", "far_share"), SHARE),
    **dict.fromkeys(("products_start", "kernel_launch", "near_alpha", "far_alpha"), SECONDS),
    **dict.fromkeys(("products_tile", "products_at_once"), WHOLE),
    **dict.fromkeys(("host_micro_batch", "host_parameter"), SECONDS),
    **dict.fromkeys(("memory_size", "memory_bandwidth", "near_bandwidth"), POSITIVE),
    "far_bandwidth": POSITIVE,
    "far_nics": WHOLE,
    "sums": Check(_are_curves, "[bytes, seconds] for ascending sizes, by number of ranks"),
}
"""The check of each field of a Description, by name."""

TABLES = dict.fromkeys(
    _path(name).split(".")[0]
    for name in CHECKS
    if "_" in name and name not in Description._field_defaults
)
"""The names of the tables that a description must have, such as `products`."""


# ---- by name


def machines() -> dict[str, Description]:
    """Returns nnmpi's own descriptions of machines by name, such as "a100-80g"."""
    return {path.stem: read_description(path) for path in sorted(FOLDER.glob("*.toml"))}


def read_description(path: str | Path) -> Description:
    """Reads a machine's TOML file; ValueError names a field that is missing, unknown or wrong."""
    file = f"machine {shown(path)}"
    remedy = "see docs/machines.md for its fields"
    try:
        text = content(path, file, LONGEST, remedy).decode()
        return Description.from_fields(parsed(tomllib.loads, text))
    except ValueError as error:
        if str(error).startswith("cannot read"):
            raise
        raise ValueError(f"{file}: {error}; {remedy}") from None


def description_named(text: str) -> Description | None:
    """Returns the description that --machine names; None for a JSON file of nnmpi.measure."""
    name, colon, ranks = text.rpartition(":")
    if not (colon and ranks.isdecimal()):
        name, ranks = text, ""
    known = [path.stem for path in sorted(FOLDER.glob("*.toml"))]
    if name not in known and not name.endswith(".toml"):
        if text.endswith(".json") or os.path.exists(text):
            return None  # a Path of a very long name would raise OSError
        if name.endswith(".json"):
            raise ValueError(
                f"--machine {shown(text)}: :RANKS is for described machines; a file of "
                f"nnmpi.measure has its ranks: give {shown(name)}"
            )
        raise ValueError(
            f"--machine {shown(text)} is not known: give one of {', '.join(known)}, with :RANKS "
            "for those of a node, a FILE.toml that describes one, or a FILE.json of nnmpi.measure"
        )
    sheet = read_description(FOLDER / f"{name}.toml" if name in known else name)
    if ranks and not (len(ranks) < 10 and 1 <= int(ranks) <= MOST_RANKS):
        raise ValueError(f"--machine {shown(text)}: a node has from 1 to {MOST_RANKS:,} ranks")
    return sheet._replace(ranks=int(ranks)) if ranks else sheet


def machine_named(text: str, dtype: str, momentum: float = 0.9) -> Machine:
    """Returns the Machine that --machine names, for models of type `dtype`."""
    described = description_named(text)
    return read_machine(text) if described is None else described.machine(dtype, momentum)


def network_named(text: str) -> Network:
    """Returns the network that --machine names, with links within a node and between nodes."""
    d = description_named(text)
    if d is None:
        m = read_machine(text)
        return Network(m.far, m.adding, m.near, m.ranks)
    return Network(d.far, 0.0, d.near, d.ranks)
