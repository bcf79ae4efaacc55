"""Swapper: moves the activations of each stage to disk and back, at the WRITE and READ of a step.

    computing   F0 ─ F1 ─ F2 ─ F3 ─ B3 ─ B2 ─ B1 ─ B0
    thread         write 0 ─ write 1 ─ ... read 1 ─ read 0

A pass waits for memory and for the disk by the same rules as the simulation in `placement.py`.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from nnmpi.addons.swapping.arena import Arena
from nnmpi.addons.swapping.disk_thread import DiskThread
from nnmpi.addons.swapping.placement import (
    STATE,
    Placement,
    Placements,
    extra_bytes,
    kept_bytes,
)
from nnmpi.addons.swapping.stage_boundary import LocalChannels, stage_boundaries
from nnmpi.parallel.step.executor import PassHooks
from nnmpi.parallel.step.update import Ends, Outcome
from nnmpi.schedules.op import NONE, Kind, Op

ROOM = 2
"""The size of an arena, as a multiple of the activations: freed memory leaves gaps."""

Do = Callable[[Op], None]


def file_bytes(activations: float, more: float) -> int:
    """Returns the length of the swap file for activations and `more` bytes of optimizer state.
    Activations that stay in memory are in it too, as the heap would not return their pages to the
    system."""
    return ROOM * round(activations) + round(more) + (1 << 20)


class Swapper:
    """Swaps the activations of a rank's stages: has the Arena in which passes allocate arrays, and
    the thread.

    plan    says which stages' activations are kept, swapped or recomputed
    takes   for each boundary between stages: whether a gradient flows back through it
    """

    def __init__(self, plan: Placements, takes: list[bool]) -> None:
        self._plan = plan
        self._loads, self._choice, self._last = plan.loads, plan.choice, len(plan.loads) - 1
        self._arena = Arena(file_bytes(plan.activations, plan.state))
        self.boundaries = stage_boundaries(plan, takes, self._arena.retag)
        ops = {Kind.WRITE: self._write, Kind.READ: self._read}
        self.channels = LocalChannels(self.boundaries, ops)
        self.hooks: PassHooks = (
            (Kind.F, self._forward),
            (Kind.RECOMPUTE, self._recompute),
            (Kind.B, self._backward),
        )
        self._disk = DiskThread(plan, self._arena)
        self._end = weakref.finalize(self, self._disk.end)
        self._is_within = False  # a step: still True at the next one if it was aborted

    def close(self) -> None:
        """Ends the thread that writes to disk and reads back."""
        self._end()
        self._disk.join()

    @contextmanager
    def allocating_state(self) -> Iterator[None]:
        """Returns a context to allocate optimizer state: in the arena, if it goes to disk."""
        with self._arena.allocating(STATE) if self._plan.state else nullcontext():
            yield
        self._disk.write_state()

    # ---- operations of lists

    def _write(self, op: Op) -> None:
        """Queues the write of a stage's activations, or of the optimizer state."""
        if op.at == NONE:
            with self._disk.change:
                self._disk.loaded.discard(STATE)
                self._disk.add(("write", STATE))
            self._is_within = False
        else:
            self._disk.add(("write", op.at))

    def _read(self, op: Op) -> None:
        """Queues a read of activations or state, for when there is memory."""
        self._disk.add(("read", STATE if op.at == NONE else op.at))

    def with_state(self, ends: Ends) -> Ends:
        """Returns the ends of a step; AGREE waits for the optimizer state."""
        agree, disk = ends[Kind.AGREE], self._disk

        def agree_with_state(step: int) -> Outcome | None:
            disk.move_to(STATE)
            disk.wait(lambda: STATE in disk.loaded)
            return agree(step)

        return {**ends, Kind.AGREE: agree_with_state}

    # ---- wrappers of passes: they allocate in the arena, and count bytes in memory

    def _forward(self, do: Do, op: Op) -> None:
        disk, s, how = self._disk, op.stage, self._choice[op.stage]
        if op.stage == op.micro == 0:
            if self._is_within:
                disk.reset()
            self._is_within = True
            disk.add(("drop", STATE))  # which a checkpoint may have read
        disk.wait(lambda: disk.in_use + self._loads[s].nbytes <= disk.limit)
        with self._arena.allocating(s, self._plan.memory - disk.in_use):
            do(op)
        if s:
            self.boundaries[s - 1].forward_done()
        with disk.change:
            swaps = how is Placement.SWAP  # a write frees them
            disk.in_use += self._loads[s].nbytes if swaps else kept_bytes(self._loads[s], how)
            if s == self._last:
                disk.move_to(s)
            self._arena.trim(disk.spare)

    def _recompute(self, do: Do, op: Op) -> None:
        disk = self._disk
        more = extra_bytes(self._loads[op.stage], self._choice[op.stage])
        disk.move_to(op.stage)
        disk.wait(lambda: disk.in_use + more <= disk.limit)
        with self._arena.allocating(op.stage, self._plan.memory - disk.in_use):
            with disk.change:
                disk.in_use += more
            do(op)

    def _backward(self, do: Do, op: Op) -> None:
        disk, s, how = self._disk, op.stage, self._choice[op.stage]
        disk.move_to(s)
        if how is Placement.SWAP:
            disk.wait(lambda: s in disk.loaded)
        do(op)
        with disk.change:
            disk.loaded.discard(s)
            swaps, unit = how is Placement.SWAP, self._loads[s]
            disk.in_use -= unit.nbytes if swaps else kept_bytes(unit, how) + extra_bytes(unit, how)
            disk.change.notify_all()
