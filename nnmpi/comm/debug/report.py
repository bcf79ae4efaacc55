"""What a rank prints of itself when ranks hang."""

import os
import sys
import traceback

from nnmpi.comm.call_log import Call
from nnmpi.comm.progress.work import Progress

FRAMES = 8  # of a stack, the innermost


def report(rank: int, progress: Progress, thread: int, late: Call | None = None) -> str:
    """What the rank waits in, its last calls and the stack of its thread.

    `late` is the call of another rank that timed out: the report tells whether it misses this one.
    Called from another thread than the rank's own.
    """
    log, waiting = progress.log, progress.waiting()
    lines = [f"rank {rank} {_doing(waiting)}"]
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


def _doing(waiting: tuple[Call, float] | None) -> str:
    if waiting is None:
        return "computes or sleeps: it waits for no other rank"
    return f"has waited for {waiting[1]:.1f} s in {waiting[0]}"


def stack(thread: int) -> str:
    """Where a thread is, without the frames of this package."""
    frame = sys._current_frames().get(thread)
    here = os.path.dirname(os.path.dirname(__file__))
    frames = [f for f in traceback.extract_stack(frame) if not f.filename.startswith(here)]
    return "".join(traceback.format_list(frames[-FRAMES:])) if frame else ""
