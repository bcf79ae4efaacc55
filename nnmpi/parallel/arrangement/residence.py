"""Residence: where the activations of each unit are between its forward and its backward pass.

    memory 4, of units a to d each 1       F a b c d  B d c b a
      keep        in memory
      swap        written to disk behind the forward passes, read ahead of the backward passes
      recompute   gone but for the input, from which the forward pass runs again

A step on two clocks, of computing and of the disk, says how long a choice takes, and the run keeps
the same rules (`parallel/swapping/swapper.py`): a pass begins when there is room for its unit, the
disk carries out one thing at a time, in order, and reads as far ahead as there is room.

The functions take values only. KARMA (2020) has the idea, and chooses by a solver.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import combinations, pairwise, product
from typing import NamedTuple, TypeAlias


class Residence(Enum):
    """The treatment of a unit's activations between its forward and its backward pass."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


class UnitLoad(NamedTuple):
    """A unit in a micro-batch: seconds of both passes; bytes that its backward pass needs, and
    those of its input, if it is to be computed again; of values that are read for each pass, and of
    gradients that are written behind the backward one, where the model is on disk."""

    forward: float
    backward: float
    nbytes: float
    input_bytes: float = 0.0
    values: float = 0.0
    gradients: float = 0.0


class Disk(NamedTuple):
    """Bytes a second; and the seconds a byte that computing loses: to the thread that writes and
    reads, as if all of its time were taken from it, and for new pages and dropped ones."""

    write: float
    read: float
    paging: float = 0.0
    touch: float = 0.0


class ModelOnDisk(NamedTuple):
    """Bytes of values, gradients and optimizer state that are on disk but for those in use, and
    what is in memory of them at a time."""

    values: float
    gradients: float
    optimizer: float
    window: float

    @property
    def nbytes(self) -> float:
        """All of it."""
        return self.values + self.gradients + self.optimizer

    @property
    def saved(self) -> float:
        """The bytes of memory that are saved by having the model on disk."""
        return self.nbytes - self.window

    def seconds(self, disk: Disk) -> float:
        """The seconds of an update: gradients are read for their norm, and then all; values and
        optimizer state are written, and their pages touched for that."""
        read = self.nbytes + self.gradients
        written = self.values + self.optimizer
        computing = (read + written) * disk.paging + written * disk.touch
        return read / disk.read + written / disk.write + computing


Choice: TypeAlias = tuple[Residence, ...]
"""The residence of each unit."""

KEEP, SWAP, RECOMPUTE = Residence

STATE, MODEL, SUMMED = -1, -2, -3
"""Stand for optimizer state, for values and gradients on disk, and for gradients that ranks sum and
that stay in memory, where units are numbered."""

PIECE = 1 << 17
"""Numbers of a model on disk that are updated at a time: whole blocks of sums of squares."""

PIECES_AT_A_TIME = 3
"""One is updated, the next one is read, and the one before is written."""

STARTS = 200
"""Choices from which a search begins, over the number of units: each takes longer with more."""


class Residences(NamedTuple):
    """The choice of a run whose activations are more than its memory.

    names    of the first layer of each unit
    memory   bytes for activations, without the samples themselves
    state    bytes of optimizer state that are on disk between updates, when activations are gone
    model    those of the model on disk, if it is there
    """

    names: tuple[str, ...]
    choice: Choice
    loads: tuple[UnitLoad, ...]
    memory: float
    disk: Disk
    state: float = 0.0
    model: ModelOnDisk | None = None

    @property
    def activations(self) -> float:
        """The bytes of all units."""
        return sum(unit.nbytes for unit in self.loads)

    @property
    def in_file(self) -> float:
        """The bytes that lie beside activations: gradients that stay in memory, too."""
        return 2 * self.model.values + self.model.optimizer if self.model else self.state

    @property
    def recomputes(self) -> bool:
        """Whether a unit is computed again."""
        return RECOMPUTE in self.choice

    @property
    def seconds(self) -> float:
        """The seconds of a micro-batch, forward and back, and of the update of a model on disk."""
        update = self.model.seconds(self.disk) if self.model else 0.0
        return seconds(self.loads, self.choice, self.memory, self.disk, self.state) + update

    @property
    def seconds_kept(self) -> float:
        """The seconds of a micro-batch, forward and back, with memory for all activations."""
        return sum(unit.forward + unit.backward for unit in self.loads)


def kept_bytes(unit: UnitLoad, how: Residence) -> float:
    """The bytes that stay in memory."""
    return {KEEP: unit.nbytes, SWAP: 0.0, RECOMPUTE: unit.input_bytes}[how]


def extra_bytes(unit: UnitLoad, how: Residence) -> float:
    """The bytes that come back when a unit is computed again."""
    return max(unit.nbytes - unit.input_bytes, 0.0) if how is RECOMPUTE else 0.0


def least_memory(units: Sequence[UnitLoad]) -> float:
    """The bytes that some choice can do with: one unit after the other is in memory."""
    return max(unit.nbytes for unit in units)


def reserved(units: Sequence[UnitLoad], choice: Choice, unit: int, at: int) -> float:
    """The bytes that reading a unit leaves free while the backward passes are at unit `at`: room to
    recompute any one of the units from the next one to `at`."""
    between = range(unit + 1, at + 1)
    return max((extra_bytes(units[r], choice[r]) for r in between), default=0.0)


class PassClocks:
    """Two clocks, and the bytes in memory, of one micro-batch. No log of a step says these times:
    passes wait for room, and room for the disk.

    If there is `state`, it is written from the beginning on, and read at the end.
    """

    def __init__(
        self,
        units: Sequence[UnitLoad],
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
        self.free_pages = memory - state  # free, with pages, since the step before
        self.nbytes = {STATE: state, **{s: unit.nbytes for s, unit in enumerate(units)}}
        self.fetched = self.written = 0.0  # when values are in memory, and gradients on disk
        self._ask_for(0)

    def seconds(self) -> float:
        """Until both are done; infinite if a pass finds no room."""
        for s in range(len(self.units)):
            self._forward(s)
        for s in reversed(range(len(self.units))):
            self._backward(s)
        self._read(STATE)
        return max(self.now, self.written, self.ready.get(STATE, math.inf))

    def _room(self, nbytes: float) -> None:
        """Waits for writes until there is room."""
        while self.writes and (self.writes[0][0] <= self.now or self.held + nbytes > self.memory):
            end, freed = self.writes.popleft()
            self.now, self.held = max(self.now, end), self.held - freed
        if self.held + nbytes > self.memory * (1 + 1e-9):
            self.now = math.inf
        self.free_pages = min(self.free_pages, self.memory - self.held)
        self.now += max(nbytes - self.free_pages, 0.0) * self.disk.touch
        self.free_pages = max(self.free_pages - nbytes, 0.0)

    def _values(self, s: int, following: int) -> None:
        """Waits for the values of a unit, if they are on disk, and asks for those of another."""
        self.now = max(self.now, self.fetched) + self.units[s].values * self.disk.paging
        self._ask_for(following)

    def _ask_for(self, s: int) -> None:
        if 0 <= s < len(self.units) and self.units[s].values:
            nbytes = self.units[s].values
            self.fetched = self.disk_free = max(self.disk_free, self.now) + nbytes / self.disk.read

    def _forward(self, s: int) -> None:
        unit, how = self.units[s], self.choice[s]
        self._room(unit.nbytes)
        self._values(s, s + 1)
        self.now += unit.forward
        self.held += unit.nbytes if how is SWAP else kept_bytes(unit, how)
        self.free_pages += unit.nbytes - kept_bytes(unit, how) if how is not SWAP else 0.0
        if how is SWAP:
            self.now += unit.nbytes * self.disk.paging
            self.disk_free = max(self.disk_free, self.now) + unit.nbytes / self.disk.write
            self.writes.append((self.disk_free, unit.nbytes))

    def _read(self, at: int) -> None:
        """Starts to read what there is room for, when the writes are done."""
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
        self._values(s, s - 1)
        if how is RECOMPUTE:
            self.now += unit.forward
        self.now += unit.backward + unit.gradients * self.disk.touch
        freed = kept_bytes(unit, how) + extra_bytes(unit, how) if how is not SWAP else unit.nbytes
        self.held, self.free_pages = self.held - freed, self.free_pages + freed
        if unit.gradients:
            self.disk_free = max(self.disk_free, self.now) + unit.gradients / self.disk.write
            self.written = self.disk_free


def seconds(
    units: Sequence[UnitLoad], choice: Choice, memory: float, disk: Disk, state: float = 0.0
) -> float:
    """The time of a micro-batch, forward and back; infinite if it does not fit."""
    return PassClocks(units, choice, memory, disk, state).seconds()


def choose(units: Sequence[UnitLoad], memory: float, disk: Disk, state: float = 0.0) -> Choice:
    """The choice that takes the least time, as far as changes of one or two units can find it.

    The search starts from the last units that fit being kept, and those before swapped, or computed
    again. Raises ValueError if nothing fits.
    """
    if least_memory(units) > memory * (1 + 1e-9):
        raise ValueError(f"one unit has {least_memory(units):,.0f} bytes, of {memory:,.0f}")

    def cost(choice: Choice) -> tuple[float, int]:
        return seconds(units, choice, memory, disk, state), sum(how is not KEEP for how in choice)

    n = len(units)
    starts = {(how,) * k + (KEEP,) * (n - k) for how in (SWAP, RECOMPUTE) for k in range(n + 1)}
    nearest = sorted(starts, key=cost)[: max(STARTS // n, 2)]
    return min((_improved(start, cost) for start in nearest), key=cost)


def _improved(choice: Choice, cost: Callable[[Choice], tuple[float, int]]) -> Choice:
    """The choice after all changes of one or two units that make it better, the best one first."""
    least = cost(choice)
    while True:
        following = min(_neighbours(choice), key=cost, default=choice)
        if cost(following) >= least:
            return choice
        choice, least = following, cost(following)


def _neighbours(choice: Choice) -> Iterator[Choice]:
    """Choices in which one unit is otherwise, or two that follow each other, or two exchange."""
    for i, residence in enumerate(choice):
        for how in Residence:
            if how is not residence:
                yield (*choice[:i], how, *choice[i + 1 :])
    for i, pair in enumerate(pairwise(choice)):
        for both in product(Residence, repeat=2):
            if both[0] is not pair[0] and both[1] is not pair[1]:
                yield (*choice[:i], *both, *choice[i + 2 :])
    for i, j in combinations(range(len(choice)), 2):
        if choice[i] is not choice[j]:
            changed = [*choice]
            changed[i], changed[j] = changed[j], changed[i]
            yield tuple(changed)
