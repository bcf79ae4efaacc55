"""What it costs to be ready for the loss of a rank: python benchmarks/faults.py [--json FILE]

Ranks of one node train W1 and W2 with its shared memory: under `mpirun --with-ft ulfm`, where each
has parameters of its own and updates all of them, so that others can go on without it, and under
mpirun alone, where they share them and each updates a part. Two jobs take turns in
short rounds, and one sleeps while the other is timed. The ratio is the median over rounds of the
quotient of wall-clock times, with its quartiles, and with the interval in which that median is in
19 of 20 such measurements. Jobs are started anew several times, since the places of their memory
are better or worse.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lib import jobs, timing
from lib.jobs import Job, Process, Task
from lib.timing import Row
from lib.workloads import TRAINED

from nnmpi.arrays import blas

TOLERANT, PLAIN = "--with-ft ulfm", "plain"
SUBJECTS = (TOLERANT, PLAIN)


def processes(subject: str, ranks: int, folder: Path) -> list[Process]:
    """Ranks that wait for tasks."""
    (path, *command), env = jobs.mpirun(ranks, [*jobs.program("lib.steps_ft"), str(folder)])
    return [Process([path, *(subject.split() if subject == TOLERANT else ()), *command], env)]


def measured(
    job_of: Mapping[str, Job], case: str, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of a step of each job, round by round."""
    task = Task(case, TRAINED[case]["batch_size"], 3)
    for job in job_of.values():
        job.run(task)
    one = job_of[PLAIN].run(task)
    task = task._replace(steps=max(3, round(seconds / one)))
    found: dict[str, list[float]] = {name: [] for name in job_of}
    for i in range(rounds):
        for name in [*job_of][:: (-1) ** i]:
            found[name].append(job_of[name].run(task))
    return found


def row_of(case: str, found: Mapping[str, Sequence[float]], ranks: int, facts: Row) -> Row:
    low, middle, high = timing.ratio(found[TOLERANT], found[PLAIN])
    quotients = [a / b for a, b in zip(found[TOLERANT], found[PLAIN], strict=True)]
    least, most = timing.median_interval(quotients)
    return {
        "benchmark": "faults",
        "case": case,
        "ranks": ranks,
        "seconds_without": min(found[PLAIN]),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "ratio_least": least,
        "ratio_most": most,
        "rounds": len(quotients),
        **facts,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per measurement to this file")
    p.add_argument("--cases", nargs="+", choices=[*TRAINED], default=[*TRAINED])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--starts", type=int, default=5, help="of each job")
    p.add_argument("--rounds", type=int, default=60, help="of each case, in each start")
    p.add_argument("--seconds", type=float, default=0.06, help="of each job, case and round")
    p.add_argument("--timeout", type=float, default=120.0, help="seconds of a task")
    return p.parse_args(arguments)


def measure(a: argparse.Namespace) -> None:
    """Start the jobs, time all cases, print and write the results."""
    blas.tune()  # as the ranks do: `facts` has the kernels of BLAS
    facts, rows = timing.machine(), list[Row]()
    timing.warn_if_busy(facts)
    steps = {case: {name: list[float]() for name in SUBJECTS} for case in a.cases}
    for _ in range(a.starts):
        with ExitStack() as stack:
            started = (Job(s, a.ranks, partial(processes, s, a.ranks), a.timeout) for s in SUBJECTS)
            job_of = {job.name: stack.enter_context(job) for job in started}
            for case, found in steps.items():
                for name, seconds in measured(job_of, case, a.rounds, a.seconds).items():
                    found[name] += seconds
    for case, found in steps.items():
        row = row_of(case, found, a.ranks, facts)
        print(
            f"{case}  {row['ratio']:.4f} of a step without --with-ft ulfm, which takes "
            f"{row['seconds_without'] * 1e3:.2f} ms (the median is in {row['ratio_least']:.4f} to "
            f"{row['ratio_most']:.4f})"
        )
        rows.append(row)
    timing.finish(a.json, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, which starts its own jobs."""
    a = parse(arguments)
    jobs.run("faults.py", lambda: measure(a))


if __name__ == "__main__":
    main()
