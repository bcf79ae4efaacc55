"""The sections of benchmarks/pipeline.py: each measures, and gives one row per measurement."""

import statistics
from collections.abc import Callable, Sequence

from lib import ranks
from lib.jobs import JobError
from lib.pipeline import model as theory
from lib.pipeline.bench import Bench, Times
from lib.pipeline.model import Profiled
from lib.rounds import ratio_of
from lib.runs import Case
from lib.timing import Row, ratio
from nnmpi.schedules.pipeline import SCHEDULES

RATE = 1e9  # bits per second of each link, each way
GOALS = {4: 0.95, 8: 0.94, 16: 0.92}
"""Of the ideal speed-up, by micro-batches."""
MNIST_GOAL = 0.92  # of the speed-up that is simulated, since its halves differ
SCHEDULE_GOAL = 0.10  # how far a measured ratio may be from the simulated one
MEMORY_GOAL = 0.25  # of 1f1b's activations over gpipe's
APART = 8  # micro-batches of the runs on two ranks that do not communicate
BALANCE = 0.05  # by which halves may differ

# ---- speed-up


def speed_up(b: Bench) -> list[Row]:
    """Two ranks over one, of three models."""
    return [row for name in ("mlp", "cnn", "mnist-cnn") for row in _speed_up_of(b, name)]


def _speed_up_of(b: Bench, name: str) -> list[Row]:
    order: list[Case] = []
    for m in b.micro_batches:
        one = b.one(name, m)
        order += [one, b.pipeline(name, m)]
        order += [one._replace(apart=True)] if m == APART else []
    return speed_up_rows(b, name, b.time(order))


def speed_up_rows(b: Bench, name: str, times: Times) -> list[Row]:
    """One row per case; those of a pipeline have its speed-up, the ideal one, and the goal."""
    rows, profiled = [], b.profiled(name)
    for case, found in times.items():
        one = case._replace(pp=1, cut=None, apart=False)
        row = b.row("speed-up", case, subject=_subject(case), seconds=statistics.median(found))
        row["rounds"] = len(found)
        if case.apart:  # two models were trained, so twice as much was computed
            row |= ratio_of(ratio([2 * t for t in times[one]], found), "1 rank")
        elif case.pp > 1:
            row |= ratio_of(ratio(times[one], found), "1 rank")
            row |= _expected_speed_up(profiled, name, case.micro_batches, row["ratio"])
        rows.append(row)
    return rows


def _subject(case: Case) -> str:
    return "apart" if case.apart else "pipeline" if case.pp > 1 else "1 rank"


def _expected_speed_up(profiled: Profiled, name: str, m: int, measured: float) -> Row:
    first, second = profiled.shares(2)
    ideal, simulated = theory.ideal_speedup(2, m), profiled.speedup("1f1b", 2, m)
    row: Row = {
        "stage_0_share": first,
        "stage_1_share": second,
        "balanced": max(first, second) <= (1 + BALANCE) * min(first, second),
        "ideal_ratio": ideal,
        "of_ideal": measured / ideal,
        "predicted_ratio": simulated,
        "of_predicted": measured / simulated,
        "predicted_seconds": profiled.simulated("1f1b", 2, m).makespan,
    }
    if name == "mnist-cnn":
        return row | {"goal": MNIST_GOAL, "goal_of": "of_predicted"}
    return row | ({"goal": GOALS[m], "goal_of": "of_ideal"} if m in GOALS else {})


# ---- schedules


def schedules(b: Bench) -> list[Row]:
    """Pairs of schedules at few micro-batches, then all of them at 8."""
    pairs = [(b.pipeline("mlp", m, "1f1b"), b.pipeline("mlp", m, "zb-h1")) for m in (2, 4)] + [
        (b.pipeline("mlp", m, "gpipe"), b.pipeline("mlp", m, "interleaved")) for m in (2, 4)
    ]
    one = b.one("mlp", 8)
    every = [b.pipeline("mlp", 8, name) for name in SCHEDULES]
    times = b.time([*(case for pair in pairs for case in pair), one, *every])
    rows = [row for base, case in pairs for row in pair_rows(b, base, case, times)]
    return rows + [_schedule_row(b, case, times, one) for case in every]


def pair_rows(b: Bench, base: Case, case: Case, times: Times) -> list[Row]:
    """A schedule, and the one that it is compared with, which has no ratio."""
    rows = [_schedule_row(b, c, times, None) for c in (base, case)]
    simulated = rows[0]["predicted_seconds"] / rows[1]["predicted_seconds"]
    measured = ratio(times[base], times[case])
    rows[1] |= ratio_of(measured, base.schedule)
    rows[1] |= {
        "predicted_ratio": simulated,
        "of_predicted": measured.median / simulated,
        "goal": SCHEDULE_GOAL,
        "goal_of": "distance from 1 of of_predicted",
    }
    return rows


def _schedule_row(b: Bench, case: Case, times: Times, one: Case | None) -> Row:
    """A schedule beside its simulation; beside one rank, the bubble too."""
    found, m = times[case], case.micro_batches
    drained = case.least_steps  # in one program
    expected = b.profiled("mlp").simulated(case.schedule, 2, m * drained)
    row = b.row("schedules", case, seconds=statistics.median(found))
    row |= {"rounds": len(found), "predicted_seconds": expected.makespan / drained}
    if one:
        row |= ratio_of(ratio(times[one], found), "1 rank")
        row |= {
            "predicted_ratio": b.profiled("mlp").simulated("1f1b", 1, m).makespan
            / row["predicted_seconds"],
            "bubble": 2 / row["ratio"] - 1,
            "predicted_bubble": expected.bubble,
        }
    return row


# ---- memory and recompute


def memory(b: Bench) -> list[Row]:
    """Activations of the first stage, under 1f1b and gpipe."""
    cases = [b.pipeline("mlp", 16, name) for name in ("gpipe", "1f1b")]
    rows = []
    for case, peak in zip(cases, b.ask("peak", cases), strict=True):
        expected = b.profiled("mlp").simulated(case.schedule, 2, 16).memory[0]
        rows.append(b.row("memory", case, bytes=peak, predicted_bytes=round(expected)))
    gpipe, other = rows
    other |= {"ratio": other["bytes"] / gpipe["bytes"], "against": "gpipe", "goal": MEMORY_GOAL}
    other["predicted_ratio"] = other["predicted_bytes"] / gpipe["predicted_bytes"]
    return rows


def recompute(b: Bench) -> list[Row]:
    """One rank that keeps what backward passes need, or computes it again."""
    kept = [b.one("mlp", m)._replace(schedule="gpipe") for m in (4, 8)]
    pairs = [(case, case._replace(recompute=True)) for case in kept]
    cases = [case for pair in pairs for case in pair]
    times, peaks = b.time(cases), dict(zip(cases, b.ask("peak", cases), strict=True))
    rows = []
    for base, case in pairs:
        first, second = (_recompute_row(b, c, times, peaks[c]) for c in (base, case))
        second |= ratio_of(ratio(times[base], times[case]), "without recompute")
        second["predicted_ratio"] = theory.recompute_speed(case.micro_batches)
        second["simulated_ratio"] = first["predicted_seconds"] / second["predicted_seconds"]
        second["bytes_ratio"] = second["bytes"] / first["bytes"]
        rows += [first, second]
    return rows


def _recompute_row(b: Bench, case: Case, times: Times, peak: int) -> Row:
    expected = b.profiled("mlp").simulated("gpipe", 1, case.micro_batches, case.recompute)
    return b.row(
        "recompute",
        case,
        recompute=case.recompute,
        seconds=statistics.median(times[case]),
        rounds=len(times[case]),
        predicted_seconds=expected.makespan,
        bytes=peak,
        predicted_bytes=round(expected.memory[0]),
    ) | {"schedule": "gpipe"}


# ---- bytes, and a slow network


def _wide(b: Bench) -> tuple[Case, Case]:
    """A pipeline and data parallelism, on the same batch of a model with large gradients."""
    case = b.one("wide", 1)._replace(micro_batches=4)
    pipeline = case._replace(pp=2, cut=b.profiled("wide").cut_text(2))
    return pipeline, case._replace(dp=2, micro_batches=1)


def _sent(b: Bench) -> list[tuple[int, int]]:
    """What all ranks send in a step of each: counted, and as the arrangement of the run says."""
    cases = [case._replace(allreduce="ring") for case in _wide(b)]
    found = b.ask("bytes", cases)
    return [(round(2 * counted[0]), round(2 * said[0])) for counted, said in found]


def traffic(b: Bench) -> list[Row]:
    """Bytes that a step sends."""
    sent = _sent(b)
    rows = [
        b.row("bytes", case, bytes=counted, predicted_bytes=said)
        for case, (counted, said) in zip(_wide(b), sent, strict=True)
    ]
    rows[0] |= {"ratio": sent[0][0] / sent[1][0], "against": "data parallelism"}
    rows[0]["predicted_ratio"] = sent[0][1] / sent[1][1]
    rows[1] |= {"algorithm": "ring"}
    return rows


def network(b: Bench) -> list[Row]:
    """The two on the emulated cluster; no rows where there is none, and why."""
    words = [str(b.rounds), str(b.seconds), *(case.text for case in _wide(b))]
    try:
        limit = max(b.timeout, 10 * b.rounds)
        times = ranks.over_network(ranks.__name__, 2, RATE, words, limit)
    except JobError as error:
        print(f"\nnetwork: left out, since there is no emulated cluster: {error}")
        return []
    return network_rows(b, _wide(b), times, [said for _, said in _sent(b)])


def network_rows(
    b: Bench, cases: Sequence[Case], times: Sequence[Sequence[float]], sent: Sequence[int]
) -> list[Row]:
    """Beside the time that the bytes take one way, half of them each way at once."""
    rows = []
    for case, found, both in zip(cases, times, sent, strict=True):
        row = b.row("network", case, seconds=statistics.median(found), rounds=len(found))
        rows.append(row | {"bits_per_second": RATE, "wire_seconds": 8 * both / 2 / RATE})
    rows[0] |= ratio_of(ratio(times[1], times[0]), "data parallelism")
    return rows


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "speed-up": speed_up,
    "schedules": schedules,
    "memory": memory,
    "recompute": recompute,
    "bytes": traffic,
    "network": network,
}
