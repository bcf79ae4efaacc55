"""Footprint: how much a process grows in a run, to compare with predictions."""

from contextlib import suppress
from pathlib import Path

from nnmpi.io.output import Event
from nnmpi.parallel.arrangement.exchanges import AxisTraffic

PROCESS = Path("/proc/self")


class Footprint:
    """Measures by how many bytes the process grows from before its model on."""

    def __init__(self) -> None:
        with suppress(OSError):
            (PROCESS / "clear_refs").write_text("5")  # resets VmHWM to what is resident now
        self._resident = memory("VmRSS")

    def event(self, sent: AxisTraffic | None) -> Event:
        """Returns this rank's part of the field `measured`: `memory_bytes`, by how much its process
        has grown at most, and what it has `sent` in a step along each axis, if known."""
        # Linux updates its counters in batches, so the peak may lag behind
        grown = max(memory("VmHWM") - self._resident, 0)
        known = {"memory_bytes": grown} if self._resident else {}
        return {**({"sent": {k: s._asdict() for k, s in sent.items()}} if sent else {}), **known}


def memory(name: str) -> int:
    """Returns the process's resident bytes, now or at most (`VmHWM`); 0 without Linux."""
    with suppress(OSError):
        for line in (PROCESS / "status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    return 0
