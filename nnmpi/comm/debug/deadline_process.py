"""The process of `deadline`: python deadline_process.py PID RANK SECONDS PATIENCE.

Each line of its input is a place where the rank, its parent, may spend so many seconds; an empty
one sets no deadline. The input ends with the rank.
"""

import os
import signal
import sys
import threading
from queue import Empty, SimpleQueue

TIME_TO_READ = 0.2  # seconds that the launcher gets to read the message


def main(process: int, rank: str, seconds: float, patience: float) -> None:
    """Waits for places, and for the end of the rank."""
    places: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=watch, args=(places, process, rank, seconds, patience)).start()
    for line in sys.stdin:
        places.put(line.strip())
    os._exit(0)


def watch(
    places: SimpleQueue[str], process: int, rank: str, seconds: float, patience: float
) -> None:
    """Kills the rank if the next place comes too late."""
    place: str | None = places.get()
    while place is not None:
        before, place = place, _next(places, seconds if place else None)
        if place is None and not _is_stopped(process):
            place = _next(places, patience)
    limit = f"NNMPI_TIMEOUT={seconds:g} s in {before}"
    if _is_stopped(process):
        end(process, f"{rank} is stopped, and has spent more than {limit}")
    end(process, f"{rank} has waited for longer than {limit} for a rank that is stopped or late")


def end(process: int, text: str) -> None:
    """Prints what is wrong and kills the rank."""
    os.write(2, f"{text}; the job ends\n".encode())
    threading.Event().wait(TIME_TO_READ)
    if os.getppid() == process:
        os.kill(process, signal.SIGKILL)
    os._exit(1)


def _next(places: SimpleQueue[str], timeout: float | None) -> str | None:
    try:
        return places.get(timeout=timeout)
    except Empty:
        return None


def _is_stopped(process: int) -> bool:
    """Whether a signal has stopped it; not known where there is no /proc."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
