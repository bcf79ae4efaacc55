"""Training on N ranks beside one, and beside PyTorch's DDP: python benchmarks/scaling.py

Each library trains on one rank and on N, one thread a rank, in jobs that are started once and
asleep unless it is their turn. Weak scaling keeps the batch of each rank, strong scaling that of
all ranks together. What takes turns in a round meets the same weather: a figure that compares two
is the median over rounds of their quotient, in samples a second on the wall.

    nnmpi   its trainer, under mpirun       T    PyTorch as users write it
    DDP     DistributedDataParallel, gloo   T*   channels_last, fused Adam, gradients in the buckets
    apart   nnmpi's ranks, nothing summed: how far cores that share a memory slow each other down

With --hidden, in a job (mpirun -n N python benchmarks/scaling.py --hidden), on one host or many:
how much of the time that the sums of gradients take is hidden behind the backward pass.
"""

import argparse
import importlib.util
import os
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from typing import NamedTuple

import jobs
import timing
from contenders import APART, RIVAL, Subject, processes, subjects_of
from flags import Parser
from jobs import Job, Task
from timing import Row
from training import ONE_THREAD
from workloads import MODELS, WORKLOADS


class Goal(NamedTuple):
    """What we hold ourselves to, in weak scaling on 2 ranks."""

    over_one_rank: float
    over_rival: float


GOALS = {"W1": Goal(1.92, 1.9), "W2": Goal(1.95, 2.2)}


class Entry(NamedTuple):
    """One subject in one kind of scaling, with so many samples on each rank."""

    subject: Subject
    scaling: str
    each: int

    @property
    def samples(self) -> int:
        """Of a step, on all ranks."""
        return self.each * self.subject.ranks


Times = Mapping[Entry, Sequence[float]]
"""Seconds of a step in each round."""

# ---- rounds, and what comes of them


def entries_of(case: str, subjects: Sequence[Subject]) -> list[Entry]:
    """One rank, then weak, then strong scaling."""
    batch = WORKLOADS[case].shape[0]
    many = [s for s in subjects if s.ranks > 1]
    return [
        *(Entry(s, "one rank", batch) for s in subjects if s.ranks == 1),
        *(Entry(s, "weak", batch) for s in many),
        *(Entry(s, "strong", batch // s.ranks) for s in many if s.option != APART),
    ]


def run(case: str, working: Mapping[Subject, Job], rounds: int, seconds: float) -> Times:
    """All entries of a case in turns; what comes before warms up and tells how long steps take."""
    entries = entries_of(case, list(working))
    tasks = {}
    for entry in entries:
        ask = working[entry.subject].ask
        ask(Task(case, entry.each, 2))
        one = ask(Task(case, entry.each, 2))
        tasks[entry] = Task(case, entry.each, max(1, round(seconds / one)))
    times: dict[Entry, list[float]] = {entry: [] for entry in entries}
    for _ in range(rounds):
        for entry, task in tasks.items():
            times[entry].append(working[entry.subject].ask(task))
    return times


def gain(times: Times, a: Entry, b: Entry) -> float:
    """a's samples a second over b's: the median over rounds."""
    pairs = zip(times[a], times[b], strict=True)
    return statistics.median((a.samples / s) / (b.samples / t) for s, t in pairs)


def rows_of(case: str, times: Times, facts: Row) -> list[Row]:
    """One row for each entry, with its gain over one rank and over PyTorch."""
    alone = {e.subject.library: e for e in times if e.scaling == "one rank"}
    best = {e.scaling: e for e in times if e.subject.name in (RIVAL, "T*")}
    rows = []
    for entry, all_seconds in times.items():
        seconds = statistics.median(all_seconds)
        row: Row = {
            "benchmark": "scaling",
            "case": case,
            "model": MODELS[case],
            "scaling": entry.scaling,
            "subject": entry.subject.name,
            "ranks": entry.subject.ranks,
            "batch_size": entry.samples,
            "seconds": seconds,
            "seconds_least": min(all_seconds),
            "samples_per_second": entry.samples / seconds,
            "rounds": len(all_seconds),
        }
        ours = entry.subject.library == "nnmpi" and entry.subject.option != APART
        if entry.scaling != "one rank" and entry.subject.name != "DDP T":
            row["over_one_rank"] = gain(times, entry, alone[entry.subject.library])
        if ours and entry.scaling in best:
            rival = best[entry.scaling]
            row |= {"ratio": gain(times, entry, rival), "against": rival.subject.name}
        if ours and entry.scaling == "weak" and entry.subject.ranks == 2:
            goal = GOALS[case]
            row |= {"goal_over_one_rank": goal.over_one_rank, "goal_ratio": goal.over_rival}
        rows.append(row | facts)
    return rows


def show(rows: Sequence[Row]) -> None:
    """The table of a case, a line an entry."""
    heads = ("step ms", "samples/s", "x 1 rank", "goal", "x T*", "goal")
    print(f"\n{rows[0]['case']:<28}" + "".join(f"{head:>11}" for head in heads))
    for r in rows:
        where = f"{r['ranks']} ranks, {r['scaling']}" if r["ranks"] > 1 else "1 rank"
        line = f"{r['subject']:<12}{where:<16}"
        line += f"{r['seconds'] * 1e3:>11.2f}{r['samples_per_second']:>11,.0f}"
        for key in ("over_one_rank", "goal_over_one_rank", "ratio", "goal_ratio"):
            line += f"{r[key]:>11.2f}" if key in r else f"{'':>11}"
        print(line.rstrip(), flush=True)


# ---- the command


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags, with everything refused that would come to light after minutes otherwise."""
    p = Parser(__doc__, "samples a second")
    p.add_argument("--cases", default=",".join(MODELS), help=f"which of {', '.join(MODELS)}")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--seconds", type=float, default=0.3, help="of one subject in one round")
    p.add_argument("--allreduce", default="auto", help="how nnmpi sums: auto, or ring,shared,...")
    p.add_argument("--timeout", type=float, default=120, help="seconds for one answer of a job")
    p.add_argument("--hidden", action="store_true", help="within a job: how much is overlapped")
    a = p.parse_args(argv)
    a.cases, a.allreduce = a.cases.split(","), list(dict.fromkeys(a.allreduce.split(",")))
    _check(p, a)
    return a


def _check(p: Parser, a: argparse.Namespace) -> None:
    from nnmpi.config import ALLREDUCES

    for unknown in [name for name in a.cases if name not in MODELS]:
        p.error(f"{unknown} is not a case; there are {', '.join(MODELS)}")
    for unknown in [name for name in a.allreduce if name not in ALLREDUCES]:
        p.error(f"{unknown!r} is not an algorithm; there are {', '.join(ALLREDUCES)}")
    for case in a.cases:
        batch = WORKLOADS[case].shape[0]
        if a.ranks < 2 or batch % a.ranks:
            p.error(f"--ranks {a.ranks} does not split a batch of {batch} samples: take 2 or 4")
    if a.rounds < 1 or not 0 < a.seconds < float("inf"):
        p.error(f"--rounds {a.rounds} of {a.seconds:g} s are no time to measure in: take 21 of 0.3")
    p.check_outputs(a)


def main(argv: Sequence[str] | None = None) -> None:
    """Within a job, or with jobs of its own."""
    a = parse(argv)
    if a.hidden:
        import hidden

        hidden.main(a.cases, a.allreduce[0], a.rounds, a.seconds, a.json)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no job is left behind
        try:
            measure(a)
        except jobs.JobError as error:
            raise SystemExit(f"scaling.py: {error}") from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def measure(a: argparse.Namespace) -> None:
    """Starts the jobs, times all cases, prints and writes."""
    has_torch = importlib.util.find_spec("torch") is not None
    os.environ.update(ONE_THREAD)
    facts = timing.machine() | {"load_before": round(os.getloadavg()[0], 1)}
    if has_torch:
        facts["torch"] = metadata.version("torch")
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    if not has_torch:
        print("PyTorch is not installed (pip install 'nnmpi[bench]'): nnmpi alone is timed")
    rows: list[Row] = []
    with ExitStack() as stack:
        working = {
            s: stack.enter_context(
                Job(f"{s.name} on {s.ranks}", s.ranks, partial(processes, s), a.timeout)
            )
            for s in subjects_of(a.ranks, a.allreduce, has_torch)
        }
        for case in a.cases:
            new = rows_of(case, run(case, working, a.rounds, a.seconds), facts)
            show(new)
            rows += new
    timing.write_rows(a.json, rows)
    if a.plot:
        import bars

        bars.draw(rows, a.plot)
        print(f"picture written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()
