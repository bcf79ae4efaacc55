"""Types and parsers of option values: numbers, durations, sizes, schedules."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from nnmpi.addons import loaded, table
from nnmpi.options.quoting import quoted, shown

LONGEST = 4096  # characters of a text, like those of a path
NUMBERS = {"constant": (0,), "cosine": (0,), "step": (1, 2)}
"""By schedule, how many numbers may follow its name."""


class Allowed(NamedTuple):
    """The numbers that an option allows, in `words`, and by `has`."""

    words: str
    has: Callable[[float], bool]


FROM_0 = Allowed("at least 0", lambda x: 0 <= x < math.inf)
FROM_1 = Allowed("at least 1", lambda x: 1 <= x < math.inf)
NUMBER_FROM_0 = FROM_0._replace(words="a number of at least 0")
ABOVE_0 = Allowed("a number above 0", lambda x: 0 < x < math.inf)
FROM_0_BELOW_1 = Allowed("a number of at least 0 and less than 1", lambda x: 0 <= x < 1)


class Rate(NamedTuple):
    """A learning-rate schedule as the option gives it: its name, and the number of warm-up steps.

    every, factor: of the schedule "step", which multiplies the rate by `factor` every `every` steps
    """

    name: str
    warmup: int = 0
    every: int = 1
    factor: float = 0.1


def rate(spec: str) -> Rate:
    """Parses `constant`, `cosine` or `step:EVERY[:FACTOR]`, after any `warmup:STEPS`."""
    head, plus, tail = spec.partition("+")
    name, _, steps = head.partition(":")
    try:
        if name == "warmup" and int(steps) > 0:
            return _term(tail if plus else "constant")._replace(warmup=int(steps))
        return _term(spec)
    except ValueError:
        raise ValueError(
            f"{quoted(spec)} must be constant, cosine or step:EVERY[:FACTOR], also after "
            "warmup:STEPS+, or warmup:STEPS; EVERY and STEPS are at least 1, and FACTOR is above 0"
        ) from None


def _term(spec: str) -> Rate:
    """Parses a schedule without warm-up; raises ValueError for another text."""
    name, *numbers = spec.split(":")
    if len(numbers) not in NUMBERS.get(name, ()):
        raise ValueError(spec)
    rate = Rate(name)
    if numbers:
        rate = rate._replace(every=int(numbers[0]))
    if numbers[1:]:
        rate = rate._replace(factor=float(numbers[1]))
    if rate.every < 1 or not 0 < rate.factor < math.inf:
        raise ValueError(spec)
    return rate


_CUTTABLE_ALONG = {
    "batch": ("dp", "tp"),
    "length": ("tp",),
    **dict.fromkeys(("channels", "heads", "vocabulary", "experts"), ("tp",)),
    **dict.fromkeys(table("layout_axes"), ("tp",)),
    "columns": (),
}
"""The mesh axes along which each axis of activations may be cut, without add-ons."""


def _parts() -> Iterator[Any]:
    """Yields the options of add-ons, whose types are in a module that few need."""
    return map(loaded, table("options").values())


@cache
def cuttable() -> dict[str, tuple[str, ...]]:
    """Returns the mesh axes along which --layout may divide each named axis."""
    axes = [axis for part in _parts() for axis in part.axes]
    return {
        name: (*(axis.name for axis in axes if name in axis.activations), *along)
        for name, along in _CUTTABLE_ALONG.items()
    }


class LayoutTerms(NamedTuple):
    """The parsed terms of the option --layout, which says how ranks divide activations and layers.

    cuts  for each term such as `channels:tp`: (axis of activations, axis of the mesh)
    ways  for each term such as `0=column`: by path of a layer or pattern of paths, how it is
          sharded
    """

    cuts: tuple[tuple[str, str], ...] = ()
    ways: Mapping[str, str] = {}

    def along(self, mesh_axis: str) -> frozenset[str]:
        """Returns the named axes that --layout divides along `mesh_axis`."""
        return frozenset(name for name, along in self.cuts if along == mesh_axis)


def layout(spec: str) -> LayoutTerms:
    """Parses terms of --layout such as `batch:dp, channels:tp` and `0=samples, *.fc=column`."""
    cuts, ways = list[tuple[str, str]](), dict[str, str]()
    for term in spec.split(","):
        path, equals, how = (word.strip() for word in term.partition("="))
        name, colon, along = (word.strip() for word in term.partition(":"))
        if path and equals and how.replace("-", "_").isidentifier() and path not in ways:
            ways[path] = how
        elif colon and along in cuttable().get(name, ()):
            cuts.append((name, along))
        else:
            raise ValueError(f"{quoted(spec)}: {_why_no_term(term.strip(), name, along)}")
    return LayoutTerms(tuple(cuts), ways)


def layout_along(axis: str) -> Callable[[Any, int], str]:
    """Returns a function for `Feature.asks`: it returns the option --layout as text if its value
    divides activations along this axis of the mesh (or, for tp, layers); otherwise ""."""

    def asks(config: Any, ranks: int) -> str:
        asked = layout(config.layout) if config.layout else LayoutTerms()
        says = asked.along(axis) or (axis == "tp" and asked.ways)
        return f"layout {shown(config.layout)}" if says else ""

    return asks


def _why_no_term(term: str, name: str, along: str) -> str:
    if term.endswith(".toml"):
        return "in Python, read the file first: Config(**nnmpi.cli.from_layout(FILE))"
    if along and name in cuttable():
        can = f", only along {' or '.join(cuttable()[name])}" * bool(cuttable()[name])
        return f"{name} cannot be cut along {quoted(along)}{can}"
    known = ", ".join(name for name, can in cuttable().items() if can)
    of_add_ons = (axis.name for part in _parts() for axis in part.axes)
    axes = ", ".join(f"AXIS:{axis}" for axis in ("dp", *of_add_ons))
    return (
        f"{quoted(term)} is neither {axes} or AXIS:tp with one of the axes {known}, nor "
        "LAYER=WAY, such as *.fc=column, with each layer only once; or give a FILE.toml"
    )


class Interval(NamedTuple):
    """An interval of `number` steps, seconds or epochs, after which something is repeated."""

    number: float
    unit: str


def interval(spec: str) -> Interval:
    """Parses an interval: `N` or `N steps`, `Ns` (seconds), or `N epochs`."""
    match = re.fullmatch(r"(\d+)(s| ?steps?| ?epochs?)?", spec)
    if match is None or not int(match[1]):
        raise ValueError(
            f"{quoted(spec)} must be N (steps), Ns (seconds) or 'N epochs', with N of at least 1"
        )
    unit = (match[2] or "steps").strip()
    return Interval(int(match[1]), "seconds" if unit == "s" else unit.rstrip("s") + "s")


SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(spec: str) -> float:
    """Parses `90`, `90s`, `30m`, `1.5h`, `1e4h` or `2d`; returns seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([smhd]?)", spec)
    seconds = float(match[1]) * SECONDS[match[2] or "s"] if match else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{quoted(spec)} is not a duration above 0: give seconds, or a number with s, m, h or "
            "d, such as 90s or 1.5h"
        )
    return seconds


SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) ?(?:([kmgt])(i?))?b?", re.IGNORECASE)


def size(spec: str) -> float:
    """Parses `100e6`, `64KB`, `1.5 GB` or, in powers of 1024, `8GiB`; returns bytes."""
    match, nbytes = SIZE.fullmatch(spec), math.inf
    if match is not None:
        power = " kmgt".index((match[2] or " ").lower())
        nbytes = float(match[1]) * (1024 if match[3] else 1000) ** power
    if nbytes == math.inf:
        raise ValueError(
            f"{quoted(spec)} is not a size: give bytes, or a number with kB, MB, GB or TB, or with "
            "KiB, MiB, GiB or TiB, such as 8GB"
        )
    return nbytes


LOGGERS = ("tensorboard", "mlflow", "wandb", "trackio")


def logger(spec: str) -> tuple[str, str]:
    """Parses `tensorboard:FOLDER` and the like: the logger, and where it writes."""
    name, _, where = spec.partition(":")
    if name not in LOGGERS or not where:
        raise ValueError(
            f"{quoted(spec)} is not a logger: give tensorboard:FOLDER, mlflow:URI, wandb:PROJECT "
            "or trackio:PROJECT"
        )
    return name, where


class Augment(NamedTuple):
    """The augmentation of images: shifts by up to `crop` pixels, and mirroring left to right."""

    crop: int = 0
    flip: bool = False


def augment(spec: str) -> Augment:
    """Parses `crop:PIXELS`, `flip` or both, as `crop:4+flip`."""
    value = Augment()
    for term in spec.split("+"):
        name, _, pixels = term.partition(":")
        if term == "flip" and not value.flip:
            value = value._replace(flip=True)
        elif name == "crop" and pixels.isdecimal() and not value.crop and 0 < int(pixels) < 1000:
            value = value._replace(crop=int(pixels))
        else:
            raise ValueError(
                f"{quoted(spec)} must be crop:PIXELS, flip or crop:PIXELS+flip, with PIXELS from "
                "1 to 999"
            )
    return value


def check_text(name: str, value: str) -> None:
    """Raises ValueError unless `value`, the value of the option `name`, can be a name or the path
    of a file: text that is not empty, not too long, and without null bytes."""
    if not value:
        raise ValueError(f"{name} is empty; give it a value or leave it out")
    if "\0" in value:
        raise ValueError(f"{name} {quoted(value)} contains a NUL character; leave it out")
    if len(value) > LONGEST:
        raise ValueError(f"{name} {quoted(value)} must have at most {LONGEST:,} characters")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} {quoted(value)} is not text: {error}") from None
