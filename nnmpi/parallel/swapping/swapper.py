"""Swapper: carries out where the activations of each stage are, around the passes of an executor.

    computing   F0 ─ F1 ─ F2 ─ F3 ─ B3 ─ B2 ─ B1 ─ B0
    thread         write 0 ─ write 1 ─ ... read 1 ─ read 0

It waits for room and for the disk by the rules of the clocks in `arrangement/residence.py`.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from nnmpi.parallel.arrangement.residence import (
    STATE,
    Residence,
    Residences,
    extra,
    left,
    reserved,
)
from nnmpi.parallel.step.executor import Around
from nnmpi.parallel.swapping.arena import Arena
from nnmpi.parallel.swapping.handover import Handover, LocalChannels
from nnmpi.schedules.op import Kind, Op

ROOM = 2
"""An arena is so many times as long as what lies in it: memory that is freed leaves gaps."""

Do = Callable[[Op], None]


def file_bytes(plan: Residences) -> int:
    """The length of the file: what is kept lies there too, as the heap would not give it back."""
    return ROOM * round(sum(unit.nbytes for unit in plan.loads) + plan.state) + (1 << 20)


class Swapper:
    """The stages of a rank in one arena, and the thread that writes and reads.

    The tag of a block is the stage whose backward pass needs it first.
    """

    def __init__(self, plan: Residences, takes: list[bool]) -> None:
        self._plan = plan
        self._loads, self._choice, self._last = plan.loads, plan.choice, len(plan.loads) - 1
        self._arena = Arena(file_bytes(plan))
        self.borders = [
            Handover(
                requires_grad,
                self._choice[s] is Residence.RECOMPUTE,
                partial(self._arena.retag, s),
            )
            for s, requires_grad in enumerate(takes, 1)
        ]
        self.channels = LocalChannels(self.borders)
        self.around: Around = (
            (Kind.F, self._forward),
            (Kind.RECOMPUTE, self._again),
            (Kind.B, self._backward),
            (Kind.REDUCE, self._reduce),
            (Kind.UPDATE, self._update),
        )
        self._change = threading.Condition()
        self._jobs: deque[tuple[str, int]] = deque()
        self._nbytes = {STATE: plan.state, **{s: u.nbytes for s, u in enumerate(plan.loads)}}
        self._held, self._at = 0.0, self._last
        self._read: set[int] = set()
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="nnmpi-swap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The thread ends."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    @contextmanager
    def making_state(self) -> Iterator[None]:
        """Within it the running sums are made."""
        with self._arena.making(STATE) if self._plan.state else nullcontext():
            yield
        self._writes_state()

    def _writes_state(self) -> None:
        with self._change:
            self._held += self._plan.state
            self._jobs.append(("write", STATE))
            self._change.notify_all()

    # ---- around operations

    def _reduce(self, do: Do, op: Op) -> None:
        """The last forward pass is over."""
        do(op)
        with self._change:
            self._jobs.append(("read", STATE))
            self._change.notify_all()

    def _update(self, do: Do, op: Op) -> None:
        self._moves_to(STATE)
        self._wait(lambda: STATE in self._read)
        do(op)
        with self._change:
            self._read.discard(STATE)
            self._held -= self._plan.state
        self._writes_state()

    def _forward(self, do: Do, op: Op) -> None:
        s, how = op.stage, self._choice[op.stage]
        self._wait(lambda: self._held + self._loads[s].nbytes <= self._limit)
        with self._arena.making(s, self._plan.memory - self._held):
            do(op)
        if s:
            self.borders[s - 1].passed()
        with self._change:
            swaps = how is Residence.SWAP
            self._held += self._loads[s].nbytes if swaps else left(self._loads[s], how)
            if swaps:
                self._jobs.append(("write", s))
            if s == self._last:
                self._at = s
                stages = reversed(range(self._last + 1))
                swapped = (t for t in stages if self._choice[t] is Residence.SWAP)
                self._jobs.extend(("read", t) for t in swapped)
            self._change.notify_all()
            self._arena.trim(self._plan.memory - self._held)

    def _again(self, do: Do, op: Op) -> None:
        more = extra(self._loads[op.stage], self._choice[op.stage])
        self._moves_to(op.stage)
        self._wait(lambda: self._held + more <= self._limit)
        with self._arena.making(op.stage, self._plan.memory - self._held):
            with self._change:
                self._held += more
            do(op)

    def _backward(self, do: Do, op: Op) -> None:
        s, how = op.stage, self._choice[op.stage]
        self._moves_to(s)
        if how is Residence.SWAP:
            self._wait(lambda: s in self._read)
        do(op)
        with self._change:
            self._read.discard(s)
            swaps, unit = how is Residence.SWAP, self._loads[s]
            self._held -= unit.nbytes if swaps else left(unit, how) + extra(unit, how)
            self._change.notify_all()

    def _moves_to(self, stage: int) -> None:
        with self._change:
            self._at = stage
            self._change.notify_all()

    @property
    def _limit(self) -> float:
        return self._plan.memory * (1 + 1e-9)

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Until it is so; raises what has gone wrong in the thread."""
        with self._change:
            self._change.wait_for(lambda: ready() or self._error is not None)
            if self._error is not None:
                raise self._error

    # ---- the thread

    def _work(self) -> None:
        try:
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._jobs or self._closed)
                    if self._closed:
                        return
                    what, s = self._jobs.popleft()
                (self._write_out if what == "write" else self._read_in)(s)
        except Exception as error:
            with self._change:
                self._error = error
                self._change.notify_all()

    def _write_out(self, s: int) -> None:
        self._arena.write_out(self._arena.blocks(s))
        with self._change:
            self._held -= self._nbytes[s]
            self._change.notify_all()

    def _read_in(self, s: int) -> None:
        nbytes = self._nbytes[s]

        def has_room() -> bool:
            rest = reserved(self._loads, self._choice, s, self._at)
            return self._held + nbytes + rest <= self._limit

        with self._change:
            self._change.wait_for(lambda: has_room() or self._closed)
            self._held += nbytes
            self._arena.trim(self._plan.memory - self._held)
        self._arena.read_in(self._arena.blocks(s))
        with self._change:
            self._read.add(s)
            self._change.notify_all()
