"""Where a model is cut into stages: its units, the best cut, and a cut by hand.

A unit is a layer, or some neighbouring layers that run as one op; no stage begins inside one. A
cut is the index of the unit at which each stage but the first begins. A user gives the same as
`--cut 3,7`, but counts layers: those of the Sequential from 0, where the layers of a nested
Sequential count one by one. Stage 1 begins with layer 3, stage 2 with layer 7.

    layer  0 Conv2d  1 ReLU  2 MaxPool2d | 3 Flatten | 4 Linear  5 ReLU | 6 Linear
    unit   0                             | 1         | 2                | 3
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.nn import Module
from nnmpi.nn.sequential import flattened, groups, only_runs_layers
from nnmpi.quoting import shown

Cut: TypeAlias = tuple[int, ...]
"""The index of the unit at which each stage but the first begins."""

NOISE = 0.02
"""Times of a profile that differ by less than this share count as equal."""


class Unit(NamedTuple):
    """Layers that stay together.

    first    the number of its first layer
    paths    of its layers in the whole model; a layer that is used twice has two
    modules  its layers
    """

    first: int
    paths: tuple[str, ...]
    modules: tuple[Module, ...]

    @property
    def name(self) -> str:
        """The path of its first layer."""
        return self.paths[0]

    @property
    def end(self) -> int:
        """The number of the layer behind its last one."""
        return self.first + len(self.modules)

    @property
    def is_trained(self) -> bool:
        """Whether it has a parameter that is trained."""
        return any(p.requires_grad for m in self.modules for p in m.parameters())

    def __str__(self) -> str:
        return " + ".join(type(m).__name__ for m in self.modules)


def units(model: Module) -> list[Unit]:
    """The units of a Sequential; raises ValueError for a model that cannot be cut."""
    if not only_runs_layers(model):
        raise ValueError(
            f"the model is a {type(model).__name__}, which cannot be cut into stages: make it an "
            "nn.Sequential of blocks; a block may be any Module"
        )
    found: list[Unit] = []
    paths, layers = zip(*flattened(model), strict=True) if len(model) else ((), ())
    first = 0
    for group in groups(layers):
        end = first + len(group)
        found.append(Unit(first, paths[first:end], tuple(group)))
        first = end
    _refuse_outside(model, paths)
    return found


def _refuse_outside(model: Module, paths: Sequence[str]) -> None:
    """Raises ValueError if a parameter or buffer belongs to a Sequential itself."""
    prefixes = tuple(f"{path}." for path in paths)
    outside = [place.path for place, _ in model.tensors() if not place.path.startswith(prefixes)]
    if outside:
        raise ValueError(
            f"{outside[0]} belongs to no layer of the model, so no stage would hold it: "
            "move it into the layer that uses it"
        )


def bounds(cut: Cut, n: int) -> list[tuple[int, int]]:
    """(start, end) of the units of each stage; n is the number of units."""
    return list(pairwise((0, *cut, n)))


def as_text(cut: Cut, units: Sequence[Unit]) -> str:
    """A cut as a user gives it: "3,7"."""
    return ",".join(str(units[k].first) for k in cut)


# ---- the best cut


def cut(
    costs: Sequence[float],
    stages: int,
    has_trained: Sequence[bool],
    memory: Sequence[float] | None = None,
) -> Cut:
    """The cut whose slowest stage is fastest, with a trained parameter in every stage.

    All three sequences have one entry a unit. With `memory`, of the cuts within NOISE of the best
    time the one whose largest stage memory is least, and of these the fastest.
    """
    _refuse_few(sum(has_trained), stages)
    none = _sums(has_trained) == 0
    time = np.where(none, np.inf, _sums(costs))
    best = _least_largest(time, stages)
    if memory is None:
        return best
    room = np.where(time <= (1 + NOISE) * _largest(time, best), _sums(memory), np.inf)
    least = _least_largest(room, stages)
    return _least_largest(np.where(room <= _largest(room, least), time, np.inf), stages)


def _sums(values: Sequence[float]) -> np.ndarray:
    """sums[a, b]: over the units a to b - 1; infinite unless a < b."""
    up_to = np.concatenate(([0.0], np.cumsum(np.asarray(values, np.float64))))
    return np.where(np.tri(len(up_to), dtype=bool), np.inf, up_to - up_to[:, None])


def _least_largest(cost: np.ndarray, stages: int) -> Cut:
    """The cut whose largest cost[a, b], of a stage with units a to b - 1, is least.

    best[b] is the least largest cost of so many stages that end before unit b.
    """
    best = np.where(np.arange(len(cost)) == 0, 0.0, np.inf)
    starts = []
    for _ in range(stages):
        largest = np.maximum(best[:, None], cost)
        starts.append(largest.argmin(axis=0))
        best = largest.min(axis=0)
    found, end = [], len(cost) - 1
    for start in reversed(starts):
        end = int(start[end])
        found.append(end)
    return tuple(found[-2::-1])  # without 0, where the first stage begins


def _largest(cost: np.ndarray, cut: Cut) -> float:
    return max(float(cost[a, b]) for a, b in bounds(cut, len(cost) - 1))


def _refuse_few(trained: int, stages: int) -> None:
    if trained < stages:
        raise ValueError(
            f"the model has {trained} layer{'s' * (trained != 1)} with trained parameters and "
            f"{stages} stages need one each: use fewer --pp or --virtual-stages"
        )


# ---- a cut by hand


def parse_cut(text: str, units: Sequence[Unit], stages: int) -> Cut:
    """The cut that a user gives as numbers of layers; raises ValueError if it is none."""
    what = f"--cut {shown(text, 60)}"
    _refuse_few(sum(unit.is_trained for unit in units), stages)
    numbers = _numbers(text, what)
    layers = units[-1].end
    if len(numbers) != stages - 1:
        raise ValueError(
            f"{what}: {len(numbers)} number{'s' * (len(numbers) != 1)} for {stages} "
            f"stage{'s' * (stages != 1)}; give {stages - 1}, the layers where stages 1, 2, ... "
            "begin"
        )
    for a, b in pairwise((0, *numbers)):
        if b <= a:
            raise ValueError(
                f"{what}: {b} does not follow {a}; give increasing numbers of layers, from 1 on"
            )
        if b >= layers:
            raise ValueError(
                f"{what}: there is no layer {b}: the model has {layers}, numbered from 0"
            )
    chosen = tuple(_unit_at(number, units, layers, what) for number in numbers)
    _refuse_untrained(chosen, units, what)
    return chosen


def _numbers(text: str, what: str) -> list[int]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise ValueError(
            f"{what}: give the numbers of the layers where stages 1, 2, ... begin, as in 3,7"
        )
    return [int(word) for word in words]


def _unit_at(number: int, units: Sequence[Unit], layers: int, what: str) -> int:
    """The index of the unit that begins with this layer."""
    k = max(k for k, unit in enumerate(units) if unit.first <= number)
    unit = units[k]
    if unit.first == number:
        return k
    allowed = " or ".join(str(n) for n in (unit.first, unit.end) if 0 < n < layers)
    raise ValueError(
        f"{what}: layer {number} is inside {unit} (layers {unit.first} to {unit.end - 1}), which "
        f"runs as one op; cut at {allowed} instead"
    )


def _refuse_untrained(cut: Cut, units: Sequence[Unit], what: str) -> None:
    """Raises ValueError unless every stage has a trained parameter."""
    for s, (a, b) in enumerate(bounds(cut, len(units))):
        if not any(unit.is_trained for unit in units[a:b]):
            raise ValueError(
                f"{what}: stage {s} from layer {units[a].first} up to {units[b - 1].end - 1} "
                f"({', '.join(map(str, units[a:b]))}) has no trained parameter, and every stage "
                "needs one"
            )
