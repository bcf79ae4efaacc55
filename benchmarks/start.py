"""What it costs to start ranks: python benchmarks/start.py [--json FILE] [--plot FILE]

    process      mpirun starts the ranks, and Python starts
    import       NumPy and nnmpi are imported
    MPI_Init     MPI starts
    connections  the first messages: to the neighbours on a ring, and to log2 p others
    Comms        a Comm for each axis of dp x pp 2 x tp 2
    discovery    ranks exchange what they know of their nodes

Wall-clock time is from the first rank that begins a phase to the last one that ends it. With more
ranks than cores it says how fast the cores are shared. Processor time is of the rank that needs
least, which is the one that waits least for others: what a rank with a core of its own would take.
A formula, a + b log2 p + c p with terms of at least 0, is fitted to it. Processor time in phases
before main() is that of Python's start only.
"""

import time
from collections.abc import Sequence

import numpy as np
from lib import jobs, start_plot, timing
from lib.flags import Parser
from lib.start_plot import DRAWN, fit, predicted
from lib.timing import Row

PHASES = ("process", "import", "MPI_Init", "connections", "Comms", "discovery")
MANY = 32  # ranks that are started in all, at most, for repetitions


def started(ranks: int, timeout: float) -> np.ndarray:
    """Times of one start: (ranks, phases + 1, wall clock and processor)."""
    command = [*jobs.program("lib.start_rank"), repr(time.time())]
    return np.array(jobs.answer(jobs.mpirun(ranks, command), f"{ranks} ranks", timeout))


def rows_of(ranks: int, samples: Sequence[np.ndarray], facts: Row) -> list[Row]:
    """A row for each phase: the least of the repetitions."""
    wall = [s[:, 1:, 0].max(0) - s[:, :-1, 0].min(0) for s in samples]
    own = [np.diff(s[:, :, 1], axis=1).min(0) for s in samples]
    return [
        {
            "benchmark": "start",
            "case": phase,
            "ranks": ranks,
            "seconds": float(min(w[i] for w in wall)),
            "processor_seconds": float(min(o[i] for o in own)),
            "repeats": len(samples),
            **facts,
        }
        for i, phase in enumerate(PHASES)
    ]


def main() -> None:
    """Runs the benchmark, which starts its own jobs."""
    p = Parser(__doc__, "the formulas up to 100,000 ranks")
    p.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--timeout", type=float, default=300.0, help="seconds of a start")
    a = p.parse_args()
    if any(ranks < 2 or ranks % 2 for ranks in a.ranks) or a.repeats < 1:
        p.error("--ranks must be even numbers from 2 on, and --repeats at least 1")
    p.check_outputs(a)
    jobs.run("start.py", lambda: measure(a.ranks, a.repeats, a.timeout, a.json, a.plot))


def measure(
    sizes: Sequence[int], repeats: int, timeout: float, path: str | None, plot: str | None
) -> None:
    """Starts all, prints and writes the results."""
    facts, rows = timing.machine(), list[Row]()
    timing.warn_if_busy(facts)
    for ranks in sizes:
        times = max(1, min(repeats, MANY // ranks))
        samples = [started(ranks, timeout) for _ in range(times)]
        rows += rows_of(ranks, samples, facts | timing.machine())
        last = rows[-len(PHASES) :]
        own = "  ".join(
            f"{r['case']} {r['seconds']:.3f} ({r['processor_seconds']:.4f})" for r in last
        )
        print(f"{ranks:3} ranks, wall clock (processor): {own}", flush=True)
    for phase in PHASES:
        own_rows = [r for r in rows if r["case"] == phase]
        f = fit(sizes, [r["processor_seconds"] for r in own_rows])
        print(
            f"{phase:12} {f['1']:.3g} + {f['log2 p']:.3g} log2 p + {f['p']:.3g} p s; at "
            f"{DRAWN:,} ranks {predicted(f, DRAWN):.3g} s"
        )
        for row in own_rows:
            row["predicted_seconds"] = predicted(f, row["ranks"])
    if plot:
        start_plot.draw(rows, plot)
    timing.finish(path, rows)


if __name__ == "__main__":
    main()
