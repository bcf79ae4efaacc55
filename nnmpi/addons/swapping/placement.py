"""Chooses, for each unit of a model, where its activations are between its forward and its backward
pass:

    memory 4, of units a to d each 1       F a b c d  B d c b a
      keep        in memory
      swap        written to disk during later forward passes, read before its backward pass
      recompute   dropped except for the input, from which the forward pass is repeated

The time of a choice is simulated with two clocks, of computing and of the disk. Runs follow the
same rules (`swapper.py`): a pass begins when there is memory for its unit. The disk handles one
operation at a time, in order. It reads ahead as long as there is memory, but leaves free what is
needed to recompute other units before. Each swapped byte also costs processor time, and touching a
page that no pass has freed takes time. With up to 5 units all choices are compared; with more the
search changes one or two units at a time, from many starts. Optimizer state is on disk between
updates if that is faster or nothing else fits.

All functions here are pure. The idea is from KARMA (2020), which chooses with a solver."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple, TypeAlias

from nnmpi.io.output.messages import EventFields
from nnmpi.parallel.arrangement.arrangement import Arrangement


class Placement(Enum):
    """Where the activations of a unit are between its forward and its backward pass."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


class UnitDemand(NamedTuple):
    """The time and memory that a unit of the model needs for one micro-batch.

    forward, backward   seconds of the passes
    nbytes              bytes of the activations that the backward pass needs
    input_bytes         bytes of its input, from which it can be recomputed"""

    forward: float
    backward: float
    nbytes: float
    input_bytes: float = 0.0


class Disk(NamedTuple):
    """The speed of a disk and its cost for computing.

    write, read   bytes per second
    paging        seconds of computing lost for each byte written or read, if the disk thread takes
                  all of its time from computing
    touch         seconds lost for each byte of a new page, and of a dropped one
    """

    write: float
    read: float
    paging: float = 0.0
    touch: float = 0.0


Choice: TypeAlias = tuple[Placement, ...]
"""The placement of each unit."""

KEEP, SWAP, RECOMPUTE = Placement

STATE = -1
"""The number that stands for the optimizer state among numbers of units."""

STARTS = 200
"""The starting points of a search times the number of units."""


class Placements(NamedTuple):
    """Where the activations of each unit are between its passes, for a run that does not fit into
    memory.

    names    the path of the first layer of each unit
    memory   bytes for activations, without the samples themselves
    state    bytes of optimizer state that is on disk during the passes, and read for the update; 0:
             it stays in memory"""

    names: tuple[str, ...]
    choice: Choice
    loads: tuple[UnitDemand, ...]
    memory: float
    disk: Disk
    state: float = 0.0

    @property
    def activations(self) -> float:
        """The bytes of all layers' activations in a micro-batch, wherever they are."""
        return sum(unit.nbytes for unit in self.loads)

    @property
    def swapped(self) -> frozenset[int]:
        """The numbers of the units whose activations are swapped to disk."""
        return frozenset(u for u, how in enumerate(self.choice) if how is SWAP)

    @property
    def recomputes(self) -> bool:
        """True if the activations of any layer are recomputed."""
        return RECOMPUTE in self.choice

    @property
    def seconds(self) -> float:
        """The predicted seconds of a micro-batch's passes by `choice`."""
        return seconds(self.loads, self.choice, self.memory, self.disk, self.state)

    @property
    def seconds_kept(self) -> float:
        """The predicted seconds if all activations fitted into memory."""
        return sum(unit.forward + unit.backward for unit in self.loads)


def placements_of(a: Arrangement) -> Placements | None:
    """Returns the Placements of an arrangement; None if a step fits into memory."""
    return a.strategy.chosen if isinstance(a.strategy.chosen, Placements) else None


def residence_fields(a: Arrangement, batches: int = 0) -> dict[str, Any]:
    """Returns the field `residences` for the start event, from Placements; {} if a step fits into
    memory."""
    if (known := placements_of(a)) is None:
        return {}
    units = zip(known.names, known.choice, known.loads, strict=True)
    return {
        "residences": {
            "memory": a.config.memory,
            "for_activations": round(known.memory),
            "swapped_state": round(known.state),
            "disk_write": round(known.disk.write),
            "disk_read": round(known.disk.read),
            "seconds": known.seconds,
            "seconds_kept": known.seconds_kept,
            "units": [
                {
                    "unit": name,
                    "residence": how.value,
                    "bytes": round(load.nbytes),
                    "seconds": load.forward + load.backward,
                }
                for name, how, load in units
            ],
        }
    }


def kept_bytes(unit: UnitDemand, how: Placement) -> float:
    """Returns the bytes of activations that a unit keeps, placed as `how`."""
    return {KEEP: unit.nbytes, SWAP: 0.0, RECOMPUTE: unit.input_bytes}[how]


def extra_bytes(unit: UnitDemand, how: Placement) -> float:
    """Returns the bytes allocated again to recompute a unit, else 0."""
    return max(unit.nbytes - unit.input_bytes, 0.0) if how is RECOMPUTE else 0.0


def least_memory(units: Sequence[UnitDemand]) -> float:
    """Returns the least memory for training: the largest unit's activations."""
    return max(unit.nbytes for unit in units)


def reserved(units: Sequence[UnitDemand], choice: Choice, unit: int, at: int) -> float:
    """Returns the bytes that must stay free when the activations of unit number `unit` are read
    from disk during the backward pass of unit `at`. They are for the units in between that `choice`
    recomputes; each of them needs its activations again before `unit` does."""
    between = range(unit + 1, at + 1)
    return max((extra_bytes(units[r], choice[r]) for r in between), default=0.0)


class PassClocks:
    """A simulation of one micro-batch with swapping: the clocks of computing and of the disk, and
    the bytes in memory. Passes wait for free memory, and the disk reads only into free memory.
    Optimizer state of `state` bytes is written at the beginning, and read at the end."""

    def __init__(
        self,
        units: Sequence[UnitDemand],
        choice: Choice,
        memory: float,
        disk: Disk,
        state: float = 0.0,
    ) -> None:
        self.units, self.choice, self.memory, self.disk = units, choice, memory, disk
        self.now, self.held, self.disk_free = 0.0, state, state / disk.write
        self.writes, self.ready = deque([(self.disk_free, state)]), dict[int, float]()
        self.reads = deque(s for s in reversed(range(len(units))) if choice[s] is SWAP)
        self.reads.append(STATE)
        self.free_pages = memory - state  # free bytes that have pages, from the step before
        self.nbytes = {STATE: state, **{s: unit.nbytes for s, unit in enumerate(units)}}

    def seconds(self) -> float:
        """Runs the simulation; returns its seconds, or infinity without memory."""
        for s in range(len(self.units)):
            self._forward(s)
        for s in reversed(range(len(self.units))):
            self._backward(s)
        self._read(STATE)
        return max(self.now, self.ready.get(STATE, math.inf))

    def _room(self, nbytes: float) -> None:
        """Advances the clock until `nbytes` bytes of memory are free, by waiting for writes to
        disk, and by the time to touch new pages. Sets it to infinity if they never are."""
        while self.writes and (self.writes[0][0] <= self.now or self.held + nbytes > self.memory):
            end, freed = self.writes.popleft()
            self.now, self.held = max(self.now, end), self.held - freed
        if self.held + nbytes > self.memory * (1 + 1e-9):
            self.now = math.inf
        self.free_pages = min(self.free_pages, self.memory - self.held)
        self.now += max(nbytes - self.free_pages, 0.0) * self.disk.touch
        self.free_pages = max(self.free_pages - nbytes, 0.0)

    def _forward(self, s: int) -> None:
        unit, how = self.units[s], self.choice[s]
        self._room(unit.nbytes)
        self.now += unit.forward
        self.held += unit.nbytes if how is SWAP else kept_bytes(unit, how)
        self.free_pages += unit.nbytes - kept_bytes(unit, how) if how is not SWAP else 0.0
        if how is SWAP:
            self.now += unit.nbytes * self.disk.paging
            self.disk_free = max(self.disk_free, self.now) + unit.nbytes / self.disk.write
            self.writes.append((self.disk_free, unit.nbytes))

    def _read(self, at: int) -> None:
        """Starts, on the clock of the disk, to read the next activations before the backward pass
        of unit `at`: as many as fit into memory, counting what running writes will free."""
        start = self.now
        while self.reads:
            s = self.reads[0]
            nbytes = self.nbytes[s]
            needed = nbytes + reserved(self.units, self.choice, s, at)
            while self.writes and self.held + needed > self.memory:
                end, freed = self.writes.popleft()
                start, self.held = max(start, end), self.held - freed
            if self.held + needed > self.memory * (1 + 1e-9):
                return
            self.disk_free = max(self.disk_free, start) + nbytes / self.disk.read
            self.held += nbytes
            self.ready[self.reads.popleft()] = self.disk_free

    def _backward(self, s: int) -> None:
        unit, how = self.units[s], self.choice[s]
        self._read(s)
        self._room(extra_bytes(unit, how))
        self.held += extra_bytes(unit, how)
        if how is SWAP:
            self.now = max(self.now, self.ready.get(s, math.inf))
        if how is RECOMPUTE:
            self.now += unit.forward
        self.now += unit.backward
        freed = kept_bytes(unit, how) + extra_bytes(unit, how) if how is not SWAP else unit.nbytes
        self.held, self.free_pages = self.held - freed, self.free_pages + freed


def seconds(
    units: Sequence[UnitDemand], choice: Choice, memory: float, disk: Disk, state: float = 0.0
) -> float:
    """Returns the seconds of the forward and backward pass over a micro-batch, if activations are
    placed as `choice` says and `state` bytes of optimizer state are on disk between updates;
    infinity if they do not fit into `memory` bytes."""
    return PassClocks(units, choice, memory, disk, state).seconds()


def choose(units: Sequence[UnitDemand], memory: float, disk: Disk, state: float = 0.0) -> Choice:
    """Returns the fastest choice that a local search finds within `memory` bytes, with `state`
    bytes of optimizer state on disk between updates. It starts from choices in which the last units
    are kept, and those before them swapped or recomputed. Raises ValueError if nothing fits."""
    if least_memory(units) > memory * (1 + 1e-9):
        needed, free = math.ceil(least_memory(units)), math.floor(memory)
        raise ValueError(f"one unit needs {needed:,} bytes; {free:,} are free")

    def cost(choice: Choice) -> tuple[float, int]:
        return seconds(units, choice, memory, disk, state), sum(how is not KEEP for how in choice)

    n = len(units)
    starts = {(how,) * k + (KEEP,) * (n - k) for how in (SWAP, RECOMPUTE) for k in range(n + 1)}
    nearest = sorted(starts, key=cost)[: max(STARTS // n, 2)]
    return min((_improved(start, cost) for start in nearest), key=cost)


def _improved(choice: Choice, cost: Callable[[Choice], tuple[float, int]]) -> Choice:
    """Returns where a local search ends, which takes the best neighbour while faster."""
    least = cost(choice)
    while True:
        following = min(_neighbours(choice), key=cost, default=choice)
        if cost(following) >= least:
            return choice
        choice, least = following, cost(following)


def _neighbours(choice: Choice) -> Iterator[Choice]:
    """Yields the choices of placements that a local search tries next: one unit placed differently,
    or two adjacent units, or two units whose placements are exchanged."""
    for i, residence in enumerate(choice):
        for how in Placement:
            if how is not residence:
                yield (*choice[:i], how, *choice[i + 1 :])
    for i, pair in enumerate(pairwise(choice)):
        for new_pair in product(Placement, repeat=2):
            if new_pair[0] is not pair[0] and new_pair[1] is not pair[1]:
                yield (*choice[:i], *new_pair, *choice[i + 2 :])
    for i, j in combinations(range(len(choice)), 2):
        if choice[i] is not choice[j]:
            changed = [*choice]
            changed[i], changed[j] = changed[j], changed[i]
            yield tuple(changed)


FIELDS = EventFields(residence_fields, residence_fields)
