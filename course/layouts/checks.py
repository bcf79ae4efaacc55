"""The checks of the assignment layouts."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from classroom import Check, Finding, apart, differs
from classroom.situations import Model, Numbers
from nnmpi.addons.planning.run.explained import arranged
from nnmpi.addons.planning.run.paper import machine_on_paper
from nnmpi.addons.planning.run.planning import PlanModels, PlanRequest, on_paper
from nnmpi.comm import Comm
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.planning.paper.rank import traffic
from nnmpi.planning.search import Searcher, largest
from nnmpi.planning.step_time import step_time

ALLOWED: dict[str, tuple[str, ...]] = {}

Rng = np.random.Generator
NEAR = 0.01  # biases, and the agreement of ranks, are not in the formulas
BY_HAND, BY_SEARCH = 1.1, 1.02  # times as long as the fastest layout


def files(seed: int) -> dict[str, str]:
    """The files of a student, by name."""
    numbers = Numbers(seed)
    options = {"ranks": numbers.ranks, "machine": "machine.toml", **numbers.model.options}
    plan = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    return {"machine.toml": numbers.machine, "plan.txt": f"{plan}\n"}


# ---- formulas against the step on paper


def models_of(numbers: Numbers) -> PlanModels:
    """The models of time and memory with which the layouts of a student are predicted."""
    return _paper(numbers, numbers.model, numbers.ranks, numbers.situation.a_node)


def _paper(numbers: Numbers, model: Model, ranks: int, a_node: int) -> PlanModels:
    """The models of a step on paper, on machines of a student with so many ranks a node."""
    config = Config(**model.options)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_text(numbers.machine)
        machine = machine_on_paper(f"{path}:{a_node}", ranks, None, config)
        request = PlanRequest(ranks, machine.nodes, None, str(path))
        return on_paper(config, request, machine)


WAYS = "1=column,3=row,5=column,7=row"  # of the model's two blocks

Case = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A function of the adapters, its arguments, and the options of the layout that it is about."""


def dp_cases(m: Model, p: int) -> Iterator[Case]:
    yield "dp_bytes", (4 * m.d * m.f, p), {"dp": p}


def fsdp_cases(m: Model, p: int) -> Iterator[Case]:
    yield "fsdp_bytes", ([m.d * m.f] * 4, p), {"dp": p, "zero": 3}


def tp_cases(m: Model, p: int) -> Iterator[Case]:
    yield "tp_bytes", (m.d, 2, m.rows, p), {"tp": p, "layout": WAYS}


def mixed_cases(m: Model, p: int) -> Iterator[Case]:
    for tp in (2, 4):
        if p > tp:
            mesh = p // tp, tp
            options = {"dp": p // tp, "tp": tp, "layout": WAYS}
            yield "mixed_bytes", (m.d, m.f, 2, m.rows, *mesh), options


def by_paper(
    cases: Callable[[Model, int], Iterator[Case]], comm: Comm, adapters: Any, rng: Rng
) -> Finding | None:
    """A formula gives the bytes that rank 0 sends in a step on paper of a model, which is large
    enough for biases not to count."""
    numbers, d = Numbers(_seed(rng)), int(rng.choice([256, 384, 512]))
    model = Model(d, 4 * d, int(rng.choice([256, 512])))
    for p in (2, 4, 8):
        models = _paper(numbers, model, p, 1)  # else ranks of a node sum in shared memory
        for name, arguments, options in cases(model, p):
            got = getattr(adapters, name)(*arguments)
            config = replace(models.arranger.plain, allreduce="ring", bucket_mb=0.1, **options)
            axes = traffic(models.arranger.arranged_by(config), 0, model.rows)
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
            most, least = apart(sent.get(got, np.inf), sent[best])
            return Finding(0, f"{label} is {got}, which sends {most} bytes; {best} sends {least}")
    return None


def _mixed(d: int, f: int, blocks: int, rows: int, dp: int, tp: int) -> float:
    sums = 2 * (dp - 1) / dp * 4 * (2 * d * f * blocks / tp)
    return sums + (2 * blocks - 1) * 2 * (tp - 1) / tp * 4 * rows / dp * d


# ---- the machine of a student


def _seed(rng: Rng) -> int:
    """The seed of the student, from which the grader has made these random numbers."""
    return int(rng.bit_generator.seed_seq.entropy[0])


def seconds(a: Arrangement, models: PlanModels) -> float:
    """The seconds of a step of a layout."""
    return step_time(a, models.costs).seconds


def searched(models: PlanModels, numbers: Numbers) -> float:
    """The seconds of the fastest layout of all that fit."""
    search = Searcher(models.arranger, models.costs, numbers.memory)
    return float(search.search(keep=1).best[0].time.seconds)


def listed(models: PlanModels, numbers: Numbers) -> Iterator[tuple[Arrangement, float]]:
    """Yields the layouts of dp, tp and pp, with 1f1b and 2, 4 or 8 micro-batches, that fit, and
    their seconds, the fastest first."""
    layouts = list[Arrangement]()
    for tp, pp in product(range(1, numbers.ranks + 1), range(1, 5)):
        for micro in (1,) if pp == 1 else (2, 4, 8):
            if numbers.ranks % (tp * pp) == 0:
                with suppress(ValueError):  # too few rows, or layers
                    flags = f"--tp {tp} --pp {pp} --micro-batches {micro}"
                    layouts.append(arranged(models, flags))
    timed = [(seconds(a, models), k) for k, a in enumerate(layouts)]
    for time, k in sorted(timed):
        if largest(layouts[k]) <= numbers.memory:
            yield layouts[k], time


def by_list(models: PlanModels, numbers: Numbers) -> float:
    """The seconds of the fastest layout of the list."""
    return next(listed(models, numbers))[1]


def fast(
    name: str,
    fastest: Callable[[PlanModels, Numbers], float],
    limit: float,
    comm: Comm,
    adapters: Any,
    rng: Rng,
) -> Finding | None:
    """A layout fits, and takes at most `limit` times as long as the fastest on this student's
    machine."""
    flags = getattr(adapters, name)()
    if not isinstance(flags, str):
        return Finding(0, f"{name}() is {flags!r}, not a text such as '--dp 4 --tp 2'")
    numbers = Numbers(_seed(rng))
    models = models_of(numbers)
    try:
        a = arranged(models, flags)
    except ValueError as error:
        return Finding(0, f"{name}() is '{flags}': {error}")
    if (nbytes := largest(a)) > numbers.memory:
        needs = f"needs {nbytes / 1e6:.4g} MB on a rank, which has {numbers.memory / 1e6:.4g}"
        return Finding(0, f"{name}(): '{flags}' {needs}")
    time, best = seconds(a, models), fastest(models, numbers)
    if time <= limit * best:
        return None
    takes = f"takes {time * 1e3:.4g} ms a step, and the fastest layout {best * 1e3:.4g}"
    return Finding(0, f"{name}(): '{flags}' {takes}; {limit:g} times that is allowed")


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
    Check("layout by hand", 10, "time", ONE, partial(fast, "by_hand", by_list, BY_HAND)),
    Check("layout by search", 5, "time", ONE, partial(fast, "by_search", searched, BY_SEARCH)),
)
