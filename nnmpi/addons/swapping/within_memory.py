"""Makes a training step fit into the limit --memory: measures the model's units and the disk, and
chooses which activations are kept in memory, recomputed, or swapped to disk."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nnmpi.addons.planning.paper.activations import activations, kept_by_units, pass_bytes
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.addons.swapping import arena
from nnmpi.addons.swapping.placement import (
    Disk,
    Placements,
    UnitDemand,
    choose,
    least_memory,
)
from nnmpi.addons.swapping.strategy import kind
from nnmpi.addons.swapping.swapper import file_bytes
from nnmpi.arrays.backend import Backend
from nnmpi.comm import Comm
from nnmpi.data import Inputs
from nnmpi.nn import Module
from nnmpi.options.amounts import amount, plural
from nnmpi.options.config import Config
from nnmpi.options.value_forms import size
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import divide
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.arrangement.partition import Unit, joined
from nnmpi.parallel.unit_costs import profile
from nnmpi.run.setup.setup import MemoryLimit

PART = 4
"""Units are measured on samples divided by this, to take less memory."""


class StepBytes(NamedTuple):
    """The bytes of memory that a rank needs in a step.

    held     between steps
    input    for the samples of a micro-batch
    state    for optimizer state, the part of `held` that may be on disk
    units    for each unit: (bytes of activations that it keeps, bytes of its input among them)"""

    held: float
    input: float
    state: int
    units: Sequence[tuple[float, float]]


def limit_of(config: Config) -> float:
    """Returns the number of bytes that a rank may use, as --memory says."""
    return size(config.memory)


def within_memory(
    a: Arrangement, comm: Comm, model: Module, gather: Callable[[int], Inputs], on: Backend
) -> Arrangement:
    """Returns the arrangement, changed so that a step fits into --memory if some rank has not
    enough, by samples of `gather(n)`. Every rank calls it."""
    limit, batch, rank = limit_of(a.config), a.config.batch_size, comm.rank
    needed = all_or_none(comm, lambda: memory(a, rank, batch).total + activations(a, rank, batch))
    if max(gather_objects(comm, needed)) <= limit:
        return a
    # every rank has to choose the same placement, so it is made for the rank that needs most
    units = joined(a.graph, partition.units(a.graph))
    of_all = gather_objects(comm, all_or_none(comm, lambda: _needs(a, rank, units)))
    needs = of_all[0]._replace(
        held=max(need.held for need in of_all),
        input=max(need.input for need in of_all),
        state=min(need.state for need in of_all),
        units=np.max([need.units for need in of_all], axis=0).tolist(),
    )
    all_or_none(comm, lambda: _check(a.config.memory, limit, needed, needs))
    longest_file = min(gather_objects(comm, _longest_file(a)))
    kept_bytes = sum(nbytes for nbytes, _ in needs.units)
    _check_disk(a, longest_file, max(file_bytes(kept_bytes, 0), arena.MEASURED))
    loads, disk = _measured(a, comm, model, gather, on, units, needs.units)

    def cut() -> Arrangement:
        room = limit - needs.held - needs.input
        kept = _choices(units, loads, room, disk, needs.state)
        by_file = {r: file_bytes(r.activations, r.state) for r in kept}
        _check_disk(a, longest_file, min(by_file.values()))
        fitting = (r for r, nbytes in by_file.items() if nbytes <= longest_file)
        best = min(fitting, key=lambda r: r.seconds)
        division = divide(a.graph, units, range(1, len(units)), [0] * len(units))
        rearranged = arrange(a.config, a.cluster, a.graph, a.sharding, division, a.measured)
        return replace(rearranged, strategy=kind(best))

    return all_or_none(comm, cut)


def _check(memory: str | None, limit: float, needed: float, needs: StepBytes) -> None:
    """Raises ValueError if a step does not fit into `limit` bytes even with as much as possible on
    disk, or if this machine cannot swap."""
    longest = max(nbytes for nbytes, _ in needs.units)
    least = needs.held + needs.input + max(longest - needs.state, 0.0)
    if least > limit:
        helps = "more --micro-batches" if needs.held < limit else "more ranks with --zero 3"
        raise ValueError(
            f"memory {memory} is not enough: a step needs {amount(needed)} per rank, or "
            f"{amount(least)} with as much as possible on disk: use --memory "
            f"{-(-least // 10**6):.0f}MB or more, or {helps}"
        )
    arena.check()


def _choices(
    units: Sequence[Unit], loads: tuple[UnitDemand, ...], memory: float, disk: Disk, state: float
) -> Iterator[Placements]:
    """Yields up to two Placements: the fastest with the optimizer state in memory, and with it on
    disk."""
    names = tuple(unit.path or str(unit) for unit in units)
    for swapped in dict.fromkeys((0.0, state)):
        room = memory + swapped
        if max(least_memory(loads), swapped) <= room:
            choice = choose(loads, room, disk, swapped)
            yield Placements(names, choice, loads, room, disk, swapped)


def _needs(a: Arrangement, rank: int, units: Sequence[Unit]) -> StepBytes:
    samples = max(micro_batches(a, rank, a.config.batch_size))
    kept = kept_by_units(a, units, samples, rank)
    held = memory(a, rank, a.config.batch_size)
    # with masters, or where ranks may be lost, optimizer state must stay in memory
    may_move = not (a.is_mixed or a.cluster.survives)
    return StepBytes(
        held.total,
        pass_bytes(a, rank, 0, samples).enters,
        held.optimizer * may_move,
        tuple(kept),
    )


def _measured(
    a: Arrangement,
    comm: Comm,
    model: Module,
    gather: Callable[[int], Inputs],
    on: Backend,
    units: Sequence[Unit],
    nbytes: Sequence[tuple[float, float]],
) -> tuple[tuple[UnitDemand, ...], Disk]:
    """Measures, on all ranks at the same time, the seconds of units, by samples of `gather(n)`, and
    the disk; the slowest rank counts. `nbytes` are StepBytes.units."""
    samples = max(micro_batches(a, comm.rank, a.config.batch_size))
    few = max(samples // PART, 1)

    def measure() -> tuple[Disk, list[tuple[float, float]]]:
        disk = arena.measured_disk()
        costs = profile(model, a.graph, units, gather(few), on, dtype=a.config.dtype)
        costs = [cost.scaled(samples / few) for cost in costs]
        return disk, [(c.forward, c.input_gradient + c.weight_gradient) for c in costs]

    comm.barrier()
    disks, times = zip(*gather_objects(comm, all_or_none(comm, measure)), strict=True)
    write, read, paging, touch = zip(*disks, strict=True)
    slowest = np.max(times, axis=0).tolist()
    rows = zip(slowest, nbytes, strict=True)
    loads = tuple(UnitDemand(f, b, kept, enters) for (f, b), (kept, enters) in rows)
    return loads, Disk(min(write), min(read), max(paging), max(touch))


def _longest_file(a: Arrangement) -> float:
    """Returns a rank's share of the free bytes of the disk; infinite for ranks that do not run."""
    return math.inf if a.config.ranks is not None else arena.free_disk() / _ranks_of_node(a)


def _ranks_of_node(a: Arrangement) -> int:
    return max(a.cluster.counts(range(a.ranks)).values())


def _check_disk(a: Arrangement, longest: float, nbytes: int) -> None:
    """Raises ValueError if a swap file would not fit into a rank's share."""
    if nbytes > longest:
        ranks = _ranks_of_node(a)
        raise ValueError(
            f"memory {a.config.memory}: {plural(ranks, 'rank')} of a node would swap to files of "
            f"{amount(nbytes)} each, and the folder of TMPDIR has {amount(longest * ranks)} free: "
            "make room, or set TMPDIR to a folder on a larger disk"
        )


LIMIT = MemoryLimit(limit_of, within_memory)
