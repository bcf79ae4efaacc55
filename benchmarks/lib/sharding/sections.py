"""The sections of benchmarks/sharding.py: each measures, and gives one row per measurement."""

import statistics
from collections.abc import Callable, Sequence

from lib.ranks import Memory, MemorySaid, Traffic
from lib.rounds import ratio_of
from lib.runs import Case
from lib.sharding import layers
from lib.sharding.bench import Bench, name_of
from lib.sharding.layers import Counted, LayerCase
from lib.timing import Row, ratio

NUMBER = 4  # bytes of a float32
MEMORY_GOAL = 0.05  # how far from the formula
BUCKET_MB = 16.0  # of the memory section: a layer of the model of 50 million parameters
TIME_GOALS = {1: 1.05, 2: 1.05, 3: 1.5}  # over data parallelism, by stage of ZeRO
WEAK_GOAL = 0.92
HALO_GOAL = 1.8

# ---- memory


def memory(b: Bench) -> list[Row]:
    """Bytes held by a rank, and the most in a step, beside what its arrangement says."""
    one = b.case("50M", bucket_mb=BUCKET_MB)
    [(alone, said)] = _held(b, [one])
    rows = [memory_row(b, one, alone, said, alone)]
    for d in (2,) if b.small else (2, 4):
        base = b.case("50M", d, dp=d, bucket_mb=BUCKET_MB)
        cases = [base._replace(zero=zero) for zero in range(4)]
        cases.append(base._replace(allreduce="shared", bucket_mb=None))
        answers = _held(b, cases)
        rows += [
            memory_row(b, case, *both, alone) for case, both in zip(cases, answers, strict=True)
        ]
    return rows


def _held(b: Bench, cases: Sequence[Case]) -> list[tuple[Memory, MemorySaid]]:
    """What a rank holds in cases that have equal numbers of ranks: measured, and said."""
    return [(Memory(*found), MemorySaid(*said)) for found, said in b.ask("memory", cases)]


def memory_row(b: Bench, case: Case, found: Memory, said: MemorySaid, alone: Memory) -> Row:
    """`alone` is a rank that trains without others on as many samples as each does here.

    `bytes` is what is traced between two steps, without slots and without buffers of messages,
    which are counted apart. Measured activations are what a step of `alone` takes besides. Pages
    stay resident once a step has used them, so `resident` is beside the formula of the peak.
    """
    parameters = b.parameters(case)
    held = found.between - found.kept
    peak = sum(said) + found.messages
    return b.row(
        "memory",
        case,
        bytes=held,
        predicted_bytes=said.held,
        ratio=held / said.held,
        against="formula",
        goal=MEMORY_GOAL,
        goal_of="distance of ratio from 1",
        per_parameter=held / parameters,
        predicted_per_parameter=said.held / parameters,
        counted_bytes=found.parameters + found.gradients + found.state,
        window_bytes=found.windows,
        slot_bytes=found.slots,
        message_bytes=found.messages,
        activation_bytes=alone.peak - alone.between,
        predicted_activation_bytes=said.activations,
        peak_bytes=found.peak,
        predicted_peak_bytes=peak,
        peak_ratio=found.peak / peak,
        resident_bytes=found.resident,
        resident_per_parameter=found.resident / parameters,
        resident_ratio=found.resident / peak,
    )


# ---- bytes


def traffic(b: Bench) -> list[Row]:
    """Bytes and messages that a rank sends in a step, beside what its arrangement says."""
    stages = [
        b.case("deep", d, dp=d, zero=zero, micro_batches=m, bucket_mb=0.016 if b.small else 1.0)
        for d in (2, 4)
        for m in (1, 4)
        for zero in range(4)
    ]
    others = [
        b.case("deep", 2, tp=2),
        b.case("deep", 2, pp=2, micro_batches=4),
        b.case("deep", 2, dp=2, tp=2),
    ]
    rows = []
    for n in (2, 4):
        cases = [case for case in stages + others if case.ranks == n]
        for case, (sent, said) in zip(cases, b.ask("bytes", cases), strict=True):
            rows.append(bytes_row(b, case, Traffic(*sent), Traffic(*said)))
    return rows


def bytes_row(b: Bench, case: Case, sent: Traffic, said: Traffic) -> Row:
    """What a rank sends, and for data parallelism in units too.

    A unit is a reduce-scatter or an all-gather of all parameters, over a ring.
    """
    row = b.row("bytes", case, bytes=sent.bytes, messages=sent.messages)
    row |= {"predicted_bytes": said.bytes, "predicted_messages": said.messages}
    row |= {"ratio": sent.bytes / said.bytes, "against": "formula"}
    if case.ranks == case.dp:
        unit = (case.dp - 1) / case.dp * b.parameters(case) * NUMBER
        row |= {"units": sent.bytes / unit, "predicted_units": said.bytes / unit}
    return row


# ---- time


def seconds(b: Bench) -> list[Row]:
    """Seconds of a step of layouts, beside data parallelism on as many ranks."""
    two = b.case("mlp", 2, dp=2)
    rows = over(
        b,
        two,
        [
            *(two._replace(zero=zero) for zero in (1, 2, 3)),
            two._replace(allreduce="shared"),
            two._replace(dp=1, tp=2),
        ],
    )
    four = b.case("mlp", 4, dp=4)
    rows += over(
        b,
        four,
        [
            four._replace(dp=2, tp=2),
            four._replace(dp=1, pp=2, tp=2, micro_batches=4),
            four._replace(dp=2, pp=2, micro_batches=4),
            four._replace(dp=2, tp=2, zero=3),
        ],
    )
    eight = b.case("mlp", 4, dp=8)
    cube = eight._replace(dp=2, pp=2, tp=2, micro_batches=4)
    return rows + over(b, eight, [cube, cube._replace(zero=1), cube._replace(zero=3)])


def over(b: Bench, base: Case, cases: Sequence[Case]) -> list[Row]:
    """Cases beside a base, on the same batch; the ratio of a faster one is below 1."""
    times = b.time([base, *cases])
    rows = [_timed(b.row("time", base), times[base])]
    for case in cases:
        row = _timed(b.row("time", case), times[case])
        row |= ratio_of(ratio(times[case], times[base]), name_of(base))
        if case.ranks == case.dp and case.zero:
            row["goal"] = TIME_GOALS[case.zero]
        rows.append(row)
    return rows


def _timed(row: Row, times: Sequence[float]) -> Row:
    return row | {"seconds": statistics.median(times), "rounds": len(times)}


# ---- weak scaling of a sharded MLP


def weak(b: Bench) -> list[Row]:
    """One rank of width H beside two of width 2H, and two that train one of width H each."""
    one = b.case("H")
    apart, two = one._replace(apart=True), b.case("2H", tp=2)
    times = b.time([apart, one, two])
    rows = [_timed(b.row("weak", one), times[one])]
    for case in (two, apart):
        row = _timed(b.row("weak", case), times[case])
        rows.append(row | ratio_of(ratio(times[one], times[case]), "1 rank"))
    rows[1]["goal"] = WEAK_GOAL
    return rows


# ---- strong scaling of one image


def halo(b: Bench) -> list[Row]:
    """One image on one rank and cut over two, and two ranks that compute half of it each."""
    sizes = (64, 64) if b.small else (1024, 1024)
    whole = LayerCase("whole image", sizes, 1)
    one, two, apart = (
        LayerCase("image in bands", sizes, 1),
        LayerCase("image", sizes, 2),
        LayerCase("half an image", sizes, 2),
    )
    times = b.time([whole, one, two, apart], layers.__name__)
    counts = dict(
        zip((one, whole, two), _counted(b, [one, whole]) + _counted(b, [two]), strict=True)
    )
    rows = []
    for case in (one, whole, two, apart):
        row = _timed(b.layer_row("halo", case), times[case])
        if case in counts:
            row |= {"bytes": counts[case].sent.bytes, "messages": counts[case].sent.messages}
            row["peak_bytes"] = counts[case].peak
        if case != one:
            row |= ratio_of(ratio(times[one], times[case]), one.kind)
        rows.append(row)
    rows[2]["goal"] = HALO_GOAL
    return rows


def _counted(b: Bench, cases: Sequence[LayerCase]) -> list[Counted]:
    """What is counted of cases that have equal numbers of ranks."""
    found = b.ask("count", cases, layers.__name__)
    return [Counted(Traffic(*sent), peak) for sent, peak in found]


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "memory": memory,
    "bytes": traffic,
    "time": seconds,
    "weak": weak,
    "halo": halo,
}
