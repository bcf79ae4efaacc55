"""Reports of ranks that wait for long, and the end of threads that would wait for ever."""

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence

from nnmpi.comm.call_log import LoggedCall
from nnmpi.comm.progress import Progress
from nnmpi.comm.stderr import print_error
from nnmpi.comm.transport.hub import Hub

TICK = 0.25  # seconds between two looks
PATIENCE = 1.0  # seconds after which a rank that waits sends its last calls to the others
LONG_WAIT = 60.0  # seconds after which a rank prints, once, the call it waits in
TIME_TO_REPORT = 1.0  # seconds from the first report to the end of the job
FRAMES = 8  # innermost frames of a stack that a report shows


def warn(rank: int, call: LoggedCall, seconds: float) -> None:
    """Prints the call in which a rank has waited for long, and how to find the cause."""
    print_error(
        f"rank {rank} has waited for {seconds:.0f} s in {call}; if ranks hang here, "
        "NNMPI_TIMEOUT=seconds ends the job with a report of every rank"
    )


def join(threads: Sequence[threading.Thread], ranks: Sequence[Progress], hub: Hub) -> None:
    """Waits for `threads`, which run as ranks, to end. If one waits for longer than NNMPI_TIMEOUT,
    or while another one calls something else, `hub` ends all with an error that says so. A thread
    that computes for ever is left running."""
    timeout, until, warned = ranks[0].log.settings.timeout, math.inf, set[int]()
    while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
        for thread in threads:
            thread.join(min(TICK, timeout / 4))
        for r, waiting in enumerate(progress.waiting() for progress in ranks):
            if waiting is not None and waiting[1] > LONG_WAIT and r not in warned:
                warned.add(r)
                warn(r, *waiting)
            if waiting is not None and waiting[1] > PATIENCE and (differ := hub.explain()):
                hub.fail(differ)
            if until == math.inf and waiting is not None and waiting[1] > timeout:
                first = f"rank {r} has waited for longer than NNMPI_TIMEOUT={timeout:g} s in "
                reports = [
                    report(i, ranks[i], thread.ident or 0, waiting[0])
                    if thread.is_alive()
                    else f"rank {i} has left"
                    for i, thread in enumerate(threads)
                ]
                hub.abort("\n".join([f"{first}{waiting[0]}", *reports]))
                until = time.monotonic() + TIME_TO_REPORT


def report(rank: int, progress: Progress, thread: int, late: LoggedCall | None = None) -> str:
    """Returns a report on a rank: the call that it waits in, its last calls and its stack, and
    whether it lacks the call `late`, in which another rank timed out. Another thread than the
    rank's own calls it."""
    log, waiting = progress.log, progress.waiting()
    does = "computes or sleeps: it waits for no other rank"
    if waiting is not None:
        does = f"has waited for {waiting[1]:.1f} s in {waiting[0]}"
    lines = [f"rank {rank} {does}"]
    if late is not None and late.number > 0 and late.comm in log.counters:
        made = log.counters[late.comm].calls
        if made < late.number:
            lines.append(
                f"  missing: it has made {made} of {late.number} calls of Comm {late.comm}"
            )
    incomplete = [w.call for w in tuple(progress.works) if not waiting or w.call != waiting[0]]
    for title, calls in (("started, not complete", incomplete), ("last calls", [*log.calls])):
        lines += [f"  {title}:", *(f"    {c}" for c in calls)] if calls else []
    frames = stack(thread)
    lines += ["  stack:", *(f"  {line}" for line in frames.splitlines())] if frames else []
    return "\n".join(lines)


def stack(thread: int) -> str:
    """The innermost frames of a thread as text, without frames of nnmpi.comm."""
    frame = sys._current_frames().get(thread)
    here = os.path.dirname(os.path.dirname(__file__))
    frames = [f for f in traceback.extract_stack(frame) if not f.filename.startswith(here)]
    return "".join(traceback.format_list(frames[-FRAMES:])) if frame else ""
