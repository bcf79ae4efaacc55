"""The fastest layout that fits: candidates in the order of a bound, until no other can be better.

bound   the units at the rank's samples, divided perfectly among the ranks along pp, tp and cp:
        without bubble, exchanges or update, so no layout takes less
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from nnmpi.config import Config
from nnmpi.mesh import AXES
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.memory import activations, memory
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.planning.machine import Machine, UnitTimes
from nnmpi.parallel.planning.step_time import StepTime, step_time

ARRANGED = tuple(axis.name for axis in AXES)
MOST_MICRO_BATCHES = 64


class Planned(NamedTuple):
    """A layout with what it takes: seconds of a step, and bytes on the rank that has most."""

    config: Config
    time: StepTime
    nbytes: int

    @property
    def samples_per_second(self) -> float:
        """Of training."""
        return self.config.batch_size / self.time.seconds


class Search(NamedTuple):
    """What was found, the fastest first, and how many layouts were looked at.

    best      that fit
    pure      the fastest of each way of being parallel alone, by its name
    looked    layouts whose time was computed
    pruned    that cannot be among the best, by their bound
    refused   that cannot be, by the reason
    too_large that do not fit, and the least memory that any of these takes
    """

    best: list[Planned]
    pure: Mapping[str, Planned]
    looked: int
    pruned: int
    refused: Mapping[str, int]
    too_large: int
    least: int


def candidates(config: Config, ranks: int) -> Iterator[Config]:
    """The layouts of so many ranks: all that options say, of those that may be faster."""
    for cp, pp, tp in product(_divisors(ranks), repeat=3):
        if ranks % (cp * pp * tp):
            continue
        dp = ranks // (cp * pp * tp)
        for zero, sequence, pipeline in product(
            (0, 1, 2, 3) if dp * cp > 1 else (0,),
            (False, True) if tp > 1 else (False,),
            _pipelines(config, pp, config.batch_size // (dp * cp)),
        ):
            yield replace(
                config, dp=dp, cp=cp, pp=pp, tp=tp, zero=zero, sequence_parallel=sequence,
                **pipeline,
            )  # fmt: skip


def _divisors(n: int) -> list[int]:
    small = [k for k in range(1, int(n**0.5) + 1) if not n % k]
    return sorted({*small, *(n // k for k in small)})


def _pipelines(config: Config, pp: int, samples: int) -> Iterator[Mapping[str, Any]]:
    """Micro-batches, schedules and recomputation."""
    counts = [1 << k for k in range(7) if 1 << k <= min(samples, MOST_MICRO_BATCHES)]
    for count, again in product(counts, (False, True)):
        for schedule in ("1f1b", "interleaved", "zb-h1") if pp > 1 else ("1f1b",):
            yield {"micro_batches": count, "recompute": again, "schedule": schedule}


def ways(config: Config) -> list[str]:
    """The ways of being parallel that a layout uses, in a word each."""
    found = [name for name in ARRANGED if (getattr(config, name) or 1) > 1]
    return [*found, *[f"zero {config.zero}"] * bool(config.zero)]


def bound(config: Config, of_units: Callable[[int], Sequence[UnitTimes]]) -> float:
    """The least seconds that a layout can take."""
    dp, cp, pp, tp = ((getattr(config, name) or 1) for name in ("dp", "cp", "pp", "tp"))
    samples = -(-config.batch_size // (dp * config.micro_batches))
    seconds = sum(unit.seconds for unit in of_units(max(samples, 1)))
    return config.micro_batches * seconds / (cp * pp * tp)


def largest(a: Arrangement) -> int:
    """The bytes of the rank that has most."""
    batch, ranks = a.config.batch_size, a.mesh.groups("pp")[0]
    return max(memory(a, r, batch).total + activations(a, r, batch) for r in ranks)


def search(
    config: Config,
    ranks: int,
    arranged: Callable[[Config], Arrangement],
    units: Sequence[Unit],
    of_units: Callable[[int], Sequence[UnitTimes]],
    machine: Machine,
    most_bytes: float,
    keep: int = 10,
    prunes: bool = True,
) -> Search:
    """The layouts that take the least time; `arranged` raises ValueError for what cannot be."""
    there = sorted(
        ((bound(one, of_units), k, one) for k, one in enumerate(candidates(config, ranks))),
        key=lambda row: row[:2],
    )
    best, pure = list[Planned](), dict[str, Planned]()
    refused, looked, pruned, large, least = dict[str, int](), 0, 0, 0, 0
    for least_seconds, _, one in there:
        used = ways(one)
        name = used[0] if len(used) == 1 else ""
        is_beaten = len(best) == keep and least_seconds >= best[-1].time.seconds
        if prunes and is_beaten and (not name or name in pure):
            pruned += 1
            continue
        try:
            a = arranged(one)
        except ValueError as error:
            reason = str(error)
            refused[reason] = refused.get(reason, 0) + 1
            continue
        looked += 1
        nbytes = largest(a)
        if nbytes > most_bytes:
            large, least = large + 1, min(least or nbytes, nbytes)
            continue
        found = Planned(one, step_time(a, units, machine), nbytes)
        best = sorted([*best, found], key=lambda p: p.time.seconds)[:keep]
        if name and (name not in pure or found.time.seconds < pure[name].time.seconds):
            pure[name] = found
    return Search(best, pure, looked, pruned, refused, large, least)
