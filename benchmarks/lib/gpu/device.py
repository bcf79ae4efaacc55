"""The device that is measured: a GPU, or the emulated one, on which times mean nothing."""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
EMULATED = 2
"""So many devices are emulated, for ranks with NCCL."""

MOST_CALLS = 500
"""In a round: the queue of a stream has about 1,000 places, and the host would wait for one."""


class Found(NamedTuple):
    """What a case has found; a row without section and case."""

    figure: float | None
    unit: str
    more: dict[str, Any]


Cases = dict[str, Callable[[], Found]]
"""What a section measures, by names that can be read without a device."""


class LeftOutError(Exception):
    """A case cannot be measured on this machine: the reason."""


class Times(NamedTuple):
    """The seconds of one call: between two events of its stream, and until it has returned."""

    device: float
    host: float


class Marks(NamedTuple):
    """How a library marks a moment of its stream, and gives the seconds between two."""

    mark: Callable[[], Any]
    between: Callable[[Any, Any], float]


class Device(NamedTuple):
    """Where cases run, and how a call is timed: in so many rounds of about so many seconds."""

    emulated: bool
    rounds: int = 7
    seconds: float = 0.03

    def set_up(self, is_null: bool) -> None:
        """Gives CuPy the emulated device, which computes nothing if `is_null`."""
        sys.path.insert(0, str(ROOT / "tests"))
        if self.emulated and is_null:
            from helpers.kernels.step_meter import set_up

            set_up(devices=EMULATED)
            import cupy

            # of which the tests' own set-up shows one
            cupy.cuda.runtime.getDeviceCount = lambda: EMULATED
        elif self.emulated:
            import helpers.device  # noqa: F401 - as the tests want it

    def times(self, call: Callable[[], object], marks: Marks | None = None) -> Times:
        """The median over rounds of the times of a call, which has been made twice before."""
        marks = marks or of_cupy(self.emulated)
        for _ in range(2):
            call()
        once = _round(call, 1, marks)
        if self.emulated:
            return once
        calls = max(1, min(MOST_CALLS, int(self.seconds / max(*once, 1e-7))))
        found = [_round(call, calls, marks) for _ in range(self.rounds)]
        return Times(*map(statistics.median, zip(*found, strict=True)))

    def free(self) -> None:
        """Gives the memory of a case back."""
        gc.collect()
        for name, free in (
            ("cupy", lambda cupy: cupy.get_default_memory_pool().free_all_blocks()),
            ("torch", lambda torch: torch.cuda.empty_cache()),
        ):
            if name in sys.modules:
                free(sys.modules[name])


def _round(call: Callable[[], object], calls: int, marks: Marks) -> Times:
    before, begin = marks.mark(), time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - begin
    return Times(marks.between(before, marks.mark()) / calls, host / calls)


def of_cupy(emulated: bool) -> Marks:
    """Events of CuPy's current stream; of the emulated device, which has no time, the host's."""
    import cupy

    if emulated:
        return Marks(time.perf_counter, lambda before, behind: behind - before)

    def mark() -> Any:
        event = cupy.cuda.Event()
        event.record()
        return event

    def between(before: Any, behind: Any) -> float:
        behind.synchronize()
        return float(cupy.cuda.get_elapsed_time(before, behind)) / 1e3

    return Marks(mark, between)
