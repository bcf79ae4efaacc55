"""The checks of the assignment layouts, and the machine and the model of each student."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from classroom import Check, Finding, differs
from nnmpi.comm import Comm
from nnmpi.options.config import Config
from nnmpi.planning.paper.rank import traffic
from nnmpi.run.planning.explained import explained
from nnmpi.run.planning.paper import machine_on_paper
from nnmpi.run.planning.planning import PlanModels, PlanRequest, on_paper, search

ALLOWED: dict[str, tuple[str, ...]] = {}

Rng = np.random.Generator
NEAR = 0.01  # biases, and the agreement of ranks, are not in the formulas
BY_HAND, BY_SEARCH = 1.1, 1.02  # times as long as the fastest layout
RANKS = 8

MACHINE = """title = "the machine of one student"
ranks = 4
device = "cpu"
flash = false
hides = []
divides = []

[peak]
float32 = {peak:.3g}

[products]
share = 0.5
start = 2e-6

[memory]
size = {memory:.3g}
bandwidth = 2e11
share = 0.7

[kernel]
launch = 1e-6

[near]
alpha = 2e-6
bandwidth = {near:.3g}
share = 0.8

[far]
alpha = 1e-5
bandwidth = {far:.3g}
nics = 1
share = 0.8
"""

MODEL = """--model mlp:{d}-{f}-{d}-{f}-{d} --data synthetic:{d}:{d}:8192 --batch-size {rows}
"""


# ---- the numbers of a student


class Numbers:
    """The machine and the model of a student, from the seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        self.d, self.rows = int(rng.choice([256, 384, 512])), int(rng.choice([256, 512]))
        self.f = 4 * self.d
        self.machine = MACHINE.format(
            peak=rng.uniform(1, 3) * 1e12,
            memory=2e9,
            near=rng.uniform(1, 4) * 1e10,
            far=rng.uniform(1, 3) * 1e9,
        )

    def model(self) -> str:
        return MODEL.format(d=self.d, f=self.f, rows=self.rows)


def files(seed: int) -> dict[str, str]:
    """The files of a student, by name."""
    numbers = Numbers(seed)
    return {"machine.toml": numbers.machine, "model.txt": numbers.model()}


# ---- formulas against the step on paper


def _paper(numbers: Numbers, ranks: int, a_node: int) -> PlanModels:
    """The models of a step on paper, on machines with so many ranks a node."""
    d, f = numbers.d, numbers.f
    data = f"synthetic:{d}:{d}:8192"
    config = Config(model=f"mlp:{d}-{f}-{d}-{f}-{d}", data=data, batch_size=numbers.rows)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_text(numbers.machine)
        machine = machine_on_paper(f"{path}:{a_node}", ranks, None, config)
        request = PlanRequest(ranks, machine.nodes, None, str(path))
        return on_paper(config, request, machine)


WAYS = "1=column,3=row,5=column,7=row"  # of the model's two blocks

Case = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A function of the adapters, its arguments, and the options of the layout that it is about."""


def dp_cases(n: Numbers, p: int) -> Iterator[Case]:
    yield "dp_bytes", (4 * n.d * n.f, p), {"dp": p}


def fsdp_cases(n: Numbers, p: int) -> Iterator[Case]:
    yield "fsdp_bytes", ([n.d * n.f] * 4, p), {"dp": p, "zero": 3}


def tp_cases(n: Numbers, p: int) -> Iterator[Case]:
    yield "tp_bytes", (n.d, 2, n.rows, p), {"tp": p, "layout": WAYS}


def mixed_cases(n: Numbers, p: int) -> Iterator[Case]:
    for tp in (2, 4):
        if p > tp:
            mesh = p // tp, tp
            options = {"dp": p // tp, "tp": tp, "layout": WAYS}
            yield "mixed_bytes", (n.d, n.f, 2, n.rows, *mesh), options


def by_paper(
    cases: Callable[[Numbers, int], Iterator[Case]], comm: Comm, adapters: Any, rng: Rng
) -> Finding | None:
    """A formula gives the bytes that rank 0 sends in a step on paper of this student's model."""
    numbers = Numbers(_seed(rng))
    for p in (2, 4, 8):
        models = _paper(numbers, p, 1)  # else ranks of a node sum in shared memory
        for name, arguments, options in cases(numbers, p):
            got = getattr(adapters, name)(*arguments)
            config = replace(models.arranger.plain, allreduce="ring", bucket_mb=0.1, **options)
            axes = traffic(models.arranger.arranged_by(config), 0, numbers.rows)
            expected = float(sum(axis.bytes for axis in axes.values()))
            label = f"{name}{arguments}"
            if wrong := differs(0, got, expected, label, rtol=NEAR):
                return wrong._replace(text=f"{wrong.text}, which a step on paper sends")
    return None


# ---- formulas against numbers


def by_numbers(
    cases: Callable[[Rng], Iterator[tuple[str, tuple[Any, ...], float]]],
    comm: Comm,
    adapters: Any,
    rng: Rng,
) -> Finding | None:
    """A formula gives the number expected, for arguments that differ from student to student."""
    for name, arguments, expected in cases(rng):
        got = getattr(adapters, name)(*arguments)
        if wrong := differs(0, got, expected, f"{name}{arguments}", rtol=1e-9):
            return wrong
    return None


def seconds_cases(rng: Rng) -> Iterator[tuple[str, tuple[Any, ...], float]]:
    for p in (1, 4, 64):
        parameters, rows, flops = *map(int, rng.integers(1000, 9000, 2)), 1e9
        yield "compute_seconds", (parameters, rows, p, flops), 6 * parameters * rows / p / flops


def token_cases(rng: Rng) -> Iterator[tuple[str, tuple[Any, ...], float]]:
    for p in (2, 8, 256):
        flops, bandwidth = float(rng.integers(1, 900)) * 1e12, float(rng.integers(1, 90)) * 1e9
        tokens = (p - 1) / p * 4 * flops / bandwidth
        yield "dp_tokens", (p, flops, bandwidth), tokens / 3
        yield "fsdp_tokens", (p, flops, bandwidth), tokens / 2


def dp_or_tp_cases(rng: Rng) -> Iterator[tuple[str, tuple[Any, ...], float]]:
    for p in (2, 8, 16):
        f = 16 * int(rng.integers(16, 512))
        yield "dp_or_tp_tokens", (f, p), f / p


def memory_cases(rng: Rng) -> Iterator[tuple[str, tuple[Any, ...], float]]:
    for p, divided in product((1, 4, 64), enumerate((0, 8, 12, 16))):
        zero, part = divided
        parameters = 64 * int(rng.integers(10**4, 10**6))
        yield "memory", (parameters, p, zero), parameters * (16 - part + part / p)


def mesh(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """No other mesh sends less than the best one; many rows want tp, and few want dp."""
    for p, rows in product((4, 16, 64), (64, 1024, 16384)):
        d = 64 * int(rng.integers(2, 9))
        arguments = d, 4 * d, 8, rows, p
        got = adapters.best_mesh(*arguments)
        label = f"best_mesh{arguments}"
        meshes = [(p // tp, tp) for tp in range(1, p + 1) if p % tp == 0]
        if got not in meshes:
            return Finding(0, f"{label} is {got!r}, not a (dp, tp) of {p} ranks")
        sent = {m: _mixed(*arguments[:4], *m) for m in meshes if rows % m[0] == 0}
        best = min(sent, key=lambda m: sent[m])
        if sent.get(got, np.inf) > sent[best]:
            text = f"{label} is {got}, which sends {sent.get(got, np.inf):.6g} bytes"
            return Finding(0, f"{text}; {best} sends {sent[best]:.6g}")
    return None


def _mixed(d: int, f: int, blocks: int, rows: int, dp: int, tp: int) -> float:
    sums = 2 * (dp - 1) / dp * 4 * (2 * d * f * blocks / tp)
    return sums + (2 * blocks - 1) * 2 * (tp - 1) / tp * 4 * rows / dp * d


# ---- the machine of a student


def _seed(rng: Rng) -> int:
    """The seed of the student, from which the grader has made these random numbers."""
    return int(rng.bit_generator.seed_seq.entropy[0])


def _searched(models: PlanModels) -> float:
    request = PlanRequest(RANKS, 2, None, "machine.toml")
    return float(search(request, models).search.best[0].time.seconds)


def _listed(models: PlanModels) -> float:
    """The seconds of the fastest layout of dp, tp and pp by 1f1b with 2, 4 or 8 micro-batches."""
    shapes = [(tp, pp) for tp, pp in product((1, 2, 4, 8), (1, 2, 4)) if RANKS % (tp * pp) == 0]
    listed = [
        f"--dp {RANKS // tp // pp} --tp {tp} --pp {pp} --micro-batches {m}"
        for tp, pp in shapes
        for m in ((1,) if pp == 1 else (2, 4, 8))
    ]
    return min(float(explained(models, flags, None)["seconds"]) for flags in listed)


def fast(
    name: str,
    fastest: Callable[[PlanModels], float],
    limit: float,
    comm: Comm,
    adapters: Any,
    rng: Rng,
) -> Finding | None:
    """A layout takes at most `limit` times as long as the fastest on this student's machine."""
    flags = getattr(adapters, name)()
    if not isinstance(flags, str):
        return Finding(0, f"{name}() is {flags!r}, not a text such as '--dp 4 --tp 2'")
    models = _paper(Numbers(_seed(rng)), RANKS, 4)
    try:
        seconds = float(explained(models, flags, None)["seconds"])
    except ValueError as error:
        return Finding(0, f"{name}() is '{flags}': {error}")
    best = fastest(models)
    if seconds <= limit * best:
        return None
    text = f"'{flags}' takes {seconds * 1e3:.4g} ms a step, and the fastest layout {best * 1e3:.4g}"
    return Finding(0, f"{name}(): {text}; {limit:g} times that is allowed")


ONE = (1,)
CHECKS = (
    Check("dp bytes", 5, "ledger", ONE, partial(by_paper, dp_cases)),
    Check("fsdp bytes", 10, "ledger", ONE, partial(by_paper, fsdp_cases)),
    Check("tp bytes", 10, "ledger", ONE, partial(by_paper, tp_cases)),
    Check("mixed bytes", 10, "ledger", ONE, partial(by_paper, mixed_cases)),
    Check("seconds", 5, "time", ONE, partial(by_numbers, seconds_cases)),
    Check("tokens a rank", 15, "time", ONE, partial(by_numbers, token_cases)),
    Check("dp or tp", 10, "ledger", ONE, partial(by_numbers, dp_or_tp_cases)),
    Check("best mesh", 10, "ledger", ONE, mesh),
    Check("memory", 10, "ledger", ONE, partial(by_numbers, memory_cases)),
    Check("layout by hand", 10, "time", ONE, partial(fast, "by_hand", _listed, BY_HAND)),
    Check("layout by search", 5, "time", ONE, partial(fast, "by_search", _searched, BY_SEARCH)),
)
