"""What it costs to be ready for the loss of a rank: python benchmarks/faults.py [--json FILE]

Ranks of one node train W1 and W2 with its shared memory: under `mpirun --with-ft ulfm`, where each
notes what it updates, so that others can finish it, and under mpirun alone. The two jobs take turns
in rounds, and one sleeps while the other is timed. A ratio is the median over rounds of the
quotient of wall-clock times, with its quartiles; `best` is the quotient of the shortest times.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lib import jobs, timing
from lib.jobs import Job, Process, Task
from lib.steps_ft import BATCH, CASES
from lib.timing import Row

TOLERANT, PLAIN = "--with-ft ulfm", "plain"


def processes(subject: str, ranks: int, folder: Path) -> list[Process]:
    """One mpirun."""
    (path, *words), env = jobs.mpirun(ranks, [*jobs.program("lib.steps_ft"), str(folder)])
    return [Process([path, *(subject.split() if subject == TOLERANT else ()), *words], env)]


def measured(
    job_of: dict[str, Job], case: str, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of a step of each job, round by round."""
    task = Task(case, BATCH[case], 3)
    for job in job_of.values():
        job.run(task)
    one = job_of[PLAIN].run(task)
    task = task._replace(steps=max(3, round(seconds / one)))
    found: dict[str, list[float]] = {name: [] for name in job_of}
    for i in range(rounds):
        for name in [*job_of][:: (-1) ** i]:
            found[name].append(job_of[name].run(task))
    return found


def row_of(case: str, found: dict[str, list[float]], ranks: int, facts: Row) -> Row:
    low, middle, high = timing.ratio(found[TOLERANT], found[PLAIN])
    return {
        "benchmark": "faults",
        "case": case,
        "ranks": ranks,
        "seconds_without": min(found[PLAIN]),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "best": min(found[TOLERANT]) / min(found[PLAIN]),
        "rounds": len(found[PLAIN]),
        **facts,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per measurement to this file")
    p.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=41)
    p.add_argument("--seconds", type=float, default=0.3, help="of each job, case and round")
    p.add_argument("--timeout", type=float, default=120.0, help="seconds of a task")
    return p.parse_args(arguments)


def measure(a: argparse.Namespace) -> None:
    """Start the jobs, time all cases, print and write the results."""
    facts, rows = timing.machine(), list[Row]()
    timing.warn_if_busy(facts)
    with ExitStack() as stack:
        job_of = {
            name: stack.enter_context(
                Job(name, a.ranks, partial(processes, name, a.ranks), a.timeout)
            )
            for name in (TOLERANT, PLAIN)
        }
        for case in a.cases:
            row = row_of(case, measured(job_of, case, a.rounds, a.seconds), a.ranks, facts)
            print(
                f"{case}  {row['ratio']:.4f} of a step without --with-ft ulfm "
                f"({row['ratio_low']:.4f} to {row['ratio_high']:.4f}); best {row['best']:.4f} of "
                f"{row['seconds_without'] * 1e3:.2f} ms"
            )
            rows.append(row)
    timing.finish(a.json, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    a = parse(arguments)
    jobs.run("faults.py", lambda: measure(a))


if __name__ == "__main__":
    main()
