"""The sections of benchmarks/language.py: each measures, and gives one row per measurement."""

import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial

import training

from lib import jobs
from lib.jobs import Process
from lib.language import generation as generated
from lib.language import memory
from lib.libraries import Device, versions
from lib.models import LANGUAGE
from lib.rounds import interleaved, ratio_of
from lib.runs import LANGUAGE as MODELS
from lib.runs import Case
from lib.study import Bench
from lib.timing import Row, ratio

LENGTHS = (1024, 2048, 4096, 8192)
"""Positions of the section of memory."""

WEAK_LAYOUTS: dict[str, dict[str, object]] = {
    "dp 2": {"dp": 2},
    "tp 2": {"tp": 2},
    "tp 2, sequence parallel": {"tp": 2, "sequence_parallel": True},
    "pp 2": {"pp": 2, "micro_batches": 4},
    "apart": {"apart": True},
}
CONTEXT_GOAL = 1.7

# ---- one core


def steps(b: Bench) -> list[Row]:
    """A training step of nnmpi, PyTorch and JAX; JAX has no LSTM of its own."""
    b.facts |= versions(training.PEERS.values())
    subjects = [s for s in ("nnmpi", *training.PEERS) if training.has(s, b.facts)]
    pythons = dict.fromkeys(subjects, sys.executable)
    rows = []
    with training.started(Device(), pythons, training.first_task("lstm")) as found:
        for case in LANGUAGE:
            tasks = training.tasks_of(case, found, 0)
            if "lstm" in case:
                tasks.pop("JAX", None)
            rows += training.rows_of(case, interleaved(tasks, b.rounds, b.seconds), b.facts)
    return [row | {"benchmark": "language", "section": "steps"} for row in rows]


# ---- memory


def attention(b: Bench) -> list[Row]:
    """Memory of causal attention, forward and back, in processes of their own."""
    lengths = LENGTHS[:2] if b.small else LENGTHS
    rows = []
    for positions in lengths:
        command = [*jobs.program(memory.__name__), str(positions)]
        found = jobs.answer(Process(command, jobs.ONE_THREAD), "memory", b.timeout)
        row = {"benchmark": "language", "section": "memory", "case": f"T = {positions}"}
        rows.append(row | {"ranks": 1, **found, **b.facts})
    return rows


# ---- generation


def generation(b: Bench) -> list[Row]:
    """Tokens a second with a cache, of the same text from the same weights, beside PyTorch's."""
    if not versions(["torch"]):
        return []
    command = [*jobs.program(generated.__name__), str(b.rounds)]
    found = jobs.answer(Process(command, jobs.ONE_THREAD), "generation", b.timeout)
    rows = []
    for subject, rates in zip(("nnmpi", "T"), zip(*found, strict=True), strict=True):
        row: Row = {"benchmark": "language", "section": "generation", "ranks": 1}
        name = "gpt:" + "x".join(map(str, generated.SIZES))
        row |= {"case": name, "subject": subject, "tokens_per_second": statistics.median(rates)}
        rows.append(row | {"rounds": len(rates), **b.facts})
    ours, theirs = zip(*found, strict=True)
    rows[0] |= ratio_of(ratio(ours, theirs), "T")
    return rows


# ---- several ranks


def weak(b: Bench) -> list[Row]:
    """Samples a second of two ranks over one rank's of the same type, with twice the samples."""
    rows = []
    for model in ("gpt-128", "gpt-384"):
        one = _case(b, model)
        layouts = {
            name: one._replace(**{"batch": (1 + ("apart" not in how)) * one.batch, **how})
            for name, how in {"1 rank": {"batch": one.batch}, **WEAK_LAYOUTS}.items()
        }
        types = [
            {name: case._replace(dtype=dtype) for name, case in layouts.items()}
            for dtype in ("float32", "bfloat16")
        ]
        rows += _over(b, "weak", types, lambda case: case.batch * (1 + case.apart))
    return rows


def context(b: Bench) -> list[Row]:
    """A step on one long sequence, cut over two ranks, over that of one rank."""
    one = _case(b, "long")
    rows = _over(
        b, "context", [{"1 rank": one, "cp 2": one._replace(cp=2)}], lambda case: case.batch
    )
    rows[-1]["goal"] = CONTEXT_GOAL
    return rows


def _case(b: Bench, model: str) -> Case:
    return Case("language", model, MODELS[model][b.small].samples, small=b.small)


def _over(
    b: Bench, section: str, tables: Sequence[dict[str, Case]], samples: Callable[[Case], int]
) -> list[Row]:
    """The speed of layouts over the first of their table, one rank: samples a second."""
    times = b.time([case for table in tables for case in table.values()])
    rows = []
    for table in tables:
        one = next(iter(table.values()))
        for name, case in table.items():
            rows.append(_row(b, section, name, case, times[case], samples(case)))
            if case != one:
                each = partial(_each, times=times, samples=samples)
                rows[-1] |= ratio_of(ratio(each(one), each(case)), "1 rank")
    return rows


def _each(
    case: Case, times: dict[Case, list[float]], samples: Callable[[Case], int]
) -> list[float]:
    """Seconds a sample."""
    return [seconds / samples(case) for seconds in times[case]]


def _row(
    b: Bench, section: str, name: str, case: Case, times: Sequence[float], samples: int
) -> Row:
    seconds, tokens = statistics.median(times), samples * case.built.shape[0]
    return {
        "benchmark": "language",
        "section": section,
        "case": case.model,
        "model": case.built.text,
        "layout": name,
        "dtype": case.dtype,
        "ranks": case.ranks,
        "batch_size": samples,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "rounds": len(times),
        **b.facts,
    }


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "steps": steps,
    "memory": attention,
    "generation": generation,
    "weak": weak,
    "context": context,
}
