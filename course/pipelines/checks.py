"""The checks of the assignment pipelines."""

from functools import partial
from typing import Any

import numpy as np

from classroom import Check, Finding, Messages, counted, differs, explained, first, shape_of
from classroom.channel import Stays
from nnmpi.comm import Comm
from nnmpi.schedules.lists.of_schedule import lists, of_passes
from nnmpi.schedules.lists.of_user import prove_passes
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import SCHEDULES
from nnmpi.schedules.placement import round_robin
from nnmpi.sim.drawing.timeline import draw
from nnmpi.sim.pipeline import Costs, simulate

ALLOWED = {
    "nnmpi.schedules.op": ("Kind", "Op"),
    "nnmpi.schedules.pipeline": ("Schedule",),
}

Rng = np.random.Generator
ALL, MANY = (1, 2, 3, 4, 8), (2, 3, 4, 8)
SIZES = [(p, m) for p in (1, 2, 3, 4, 6) for m in (1, 2, 3, 4, 7)]
WIDTH = 3  # of the stages that are run


# ---- schedules as values


def _wrong_passes(ranks: Any, p: int, m: int, name: str) -> Finding | None:
    """What is wrong with the passes of all ranks before they are proved."""
    label = f"{name}({p}, {m})"
    if not isinstance(ranks, list) or len(ranks) != p:
        return Finding(0, f"{label} is not a list of {p} lists, one for each rank")
    for r, ops in enumerate(ranks):
        if not isinstance(ops, list):
            return Finding(r, f"{label} has {ops!r} for this rank, not a list")
        if len(ops) != 2 * m:
            return Finding(r, f"{label} has {len(ops)} passes, expected {2 * m}: {_text(ops)}")
        for k, op in enumerate(ops):
            if not isinstance(op, Op) or op.kind not in (Kind.F, Kind.B):
                return Finding(r, f"{label}: {op!r} is no Op of Kind.F or Kind.B", k)
            if op.stage != r:
                return Finding(r, f"{label}: {op} is of stage {op.stage}, expected {r}", k)
            if not 0 <= op.micro < m:
                return Finding(r, f"{label}: there is no micro-batch {op.micro}", k)
            if op.kind is Kind.B and Op(Kind.F, op.micro, r) not in ops[:k]:
                return Finding(r, f"{label}: {op} comes without F{op.micro} before it", k)
    try:
        prove_passes(ranks, round_robin(p, 1), m)
    except ScheduleError as error:
        return Finding(0, f"{label}: {error}")
    return None


def _text(ops: list[Op]) -> str:
    return " ".join(map(str, ops))


def proved(name: str, comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """The passes are complete, and run to their end without a deadlock."""
    for p, m in SIZES:
        if wrong := _wrong_passes(getattr(adapters, name)(p, m), p, m, name):
            return wrong
    return None


def in_order(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """GPipe has one order: all forward passes, then all backward passes from the last one on."""
    for p, m in SIZES:
        ranks, right = adapters.gpipe(p, m), SCHEDULES["gpipe"].compute(p, m, 1)
        if wrong := _wrong_passes(ranks, p, m, "gpipe"):
            return wrong
        for r, (got, expected) in enumerate(zip(ranks, right, strict=True)):
            if got != expected:
                text = f"gpipe({p}, {m}) is {_text(got)}, expected {_text(expected)}"
                return Finding(r, text)
    return None


def memory(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """No rank holds more micro-batches than keep it busy: p - r, or m."""
    for p, m in SIZES:
        ranks = adapters.one_f_one_b(p, m)
        if wrong := _wrong_passes(ranks, p, m, "one_f_one_b"):
            return wrong
        live = simulate(of_passes(ranks, round_robin(p, 1), m), Costs.uniform(p)).live
        for r in range(p):
            if live[r] != min(p - r, m):
                of = f"one_f_one_b({p}, {m}) holds {live[r]} micro-batches at once"
                return Finding(r, f"{of}, expected {min(p - r, m)}: {_text(ranks[r])}")
    return None


def idle(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """1F1B takes as long as it has to; draws it on the numbers of this student."""
    shown = 4, int(rng.integers(5, 9))
    for p, m in (*SIZES, shown):
        ranks = adapters.one_f_one_b(p, m)
        if wrong := _wrong_passes(ranks, p, m, "one_f_one_b"):
            return wrong
        simulation = simulate(
            of_passes(ranks, round_robin(p, 1), m), Costs.uniform(p, forward=1, backward=2)
        )
        if simulation.makespan != 3 * (m + p - 1):
            took = f"one_f_one_b({p}, {m}) takes {simulation.makespan:g}, if F takes 1 and B 2"
            return Finding(0, f"{took}; expected {3 * (m + p - 1)}")
    print(f"{shown[0]} ranks, {shown[1]} micro-batches: a bubble of {simulation.bubble:.3f}")
    print(draw([simulation.timeline]), flush=True)
    return None


def formulas(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """The formulas give what a simulation of both schedules shows."""
    for p, m in SIZES:
        for name, ours in (("gpipe", "gpipe"), ("1f1b", "1f1b")):
            simulation = simulate(lists(SCHEDULES[ours], p, m), Costs.uniform(p))
            got, label = adapters.bubble(p, m), f"bubble({p}, {m})"
            if wrong := differs(0, got, simulation.bubble, label):
                return wrong
            for r, live in enumerate(simulation.live):
                got, label = adapters.held(name, p, m, r), f'held("{name}", {p}, {m}, {r})'
                if wrong := differs(0, got, float(live), label):
                    return wrong
    return None


# ---- running one


class Stage(Stays):
    """y = tanh(x W), which compares the passes that are made with those that were asked for."""

    methods = ("forward", "backward")

    def __init__(self, W: np.ndarray, passes: list[Op], of_rank: int) -> None:
        self.W, self.passes, self.rank = W, passes, of_rank
        self.gradient, self.made = np.zeros_like(W), 0
        self.inputs: list[np.ndarray] = []  # of each micro-batch: what is right
        self.wrong: Finding | None = None

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._compare("forward", Kind.F, x)
        return np.tanh(x @ self.W)

    def backward(self, x: np.ndarray, y: np.ndarray, gy: np.ndarray) -> np.ndarray:
        self._compare("backward", Kind.B, x)
        wrong = shape_of(y, x.shape, "y of a backward pass")
        if (wrong := wrong or shape_of(gy, x.shape, "the gradient of y")) and not self.wrong:
            self.wrong = Finding(self.rank, wrong, self.made - 1)
        if self.wrong:  # of the right shape, so that a fault on one rank is not one on all
            return np.zeros_like(gy)
        inner = gy * (1 - y**2)
        self.gradient += x.T @ inner
        return inner @ self.W.T

    def _compare(self, name: str, kind: Kind, x: np.ndarray) -> None:
        k, self.made = self.made, self.made + 1
        op = self.passes[k] if k < len(self.passes) else None
        text = ""
        if op is None or op.kind is not kind:
            text = f"{name} is called, expected {op or 'nothing'}"
        elif not _is(x, self.inputs[op.micro]):
            got = [i for i, right in enumerate(self.inputs) if _is(x, right)]
            which = f"the input of micro-batch {got[0]}" if got else "no input of this stage"
            text = f"{name} gets {which}, expected that of micro-batch {op.micro}"
        if text and not self.wrong:
            self.wrong = Finding(self.rank, text, k)


def _is(x: Any, right: np.ndarray) -> bool:
    return isinstance(x, np.ndarray) and x.shape == right.shape and np.allclose(x, right, 1e-9)


class Batch:
    """A training step of the pipeline, computed on one rank: all activations and gradients."""

    def __init__(self, p: int, m: int, rng: Rng) -> None:
        rows = [int(n) for n in rng.integers(1, 4, m)]
        self.weights = [rng.standard_normal((WIDTH, WIDTH)) for _ in range(p)]
        self.inputs = [rng.standard_normal((n, WIDTH)) for n in rows]
        self.targets = [rng.standard_normal((n, WIDTH)) for n in rows]
        self.inputs_of = [[x.copy() for x in self.inputs]]  # by stage
        for W in self.weights:
            self.inputs_of.append([np.tanh(x @ W) for x in self.inputs_of[-1]])
        self.gradients = self._gradients([sum(rows)] * m)
        self.mistakes = {
            "the mean of micro-batch means: divide by the rows of the whole step": (
                self._gradients([n * m for n in rows])
            ),
            "the sum of micro-batch means: divide by the rows of the whole step": (
                self._gradients(rows)
            ),
        }

    def _gradients(self, divisors: list[int]) -> list[np.ndarray]:
        """The gradients of all stages, with the loss of each micro-batch divided by a number."""
        gradients = [np.zeros_like(W) for W in self.weights]
        for i, (y, target) in enumerate(zip(self.inputs_of[-1], self.targets, strict=True)):
            g = (y - target) / divisors[i]
            for s in reversed(range(len(gradients))):
                inner = g * (1 - self.inputs_of[s + 1][i] ** 2)
                gradients[s] += self.inputs_of[s][i].T @ inner
                g = inner @ self.weights[s].T
        return gradients


def _run(
    name: str, m: int, comm: Comm, adapters: Any, rng: Rng
) -> tuple[Messages, Batch, Finding | None]:
    """Runs a schedule of ours by the student's executor; what is wrong with its passes."""
    p, r = comm.size, comm.rank
    batch, messages = Batch(p, m, rng), Messages(comm)
    passes = SCHEDULES[name].compute(p, m, 1)[r]
    stage = Stage(batch.weights[r].copy(), passes, r)
    stage.inputs = batch.inputs_of[r]
    adapters.run(messages, [*passes], stage, batch.inputs, batch.targets)
    wrong = stage.wrong
    if not wrong and stage.made < len(passes):
        wrong = Finding(r, f"{stage.made} of {len(passes)} passes are made", stage.made)
    if not wrong and messages.unfinished:
        wrong = Finding(r, f"{messages.unfinished[0]} was never waited for")
    if not wrong:
        label = f"the gradient of the weights of stage {r}, {m} micro-batches"
        mistakes = {hint: of_stages[r] for hint, of_stages in batch.mistakes.items()}
        wrong = differs(r, stage.gradient, batch.gradients[r], label)
        wrong = explained(wrong, stage.gradient, mistakes)
    return messages, batch, wrong


def runs(name: str, m: int, comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """Each stage gets the gradient that one rank computes, by the passes in the order asked for."""
    return _run(name, m, comm, adapters, rng)[2]


def ledger(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """Each micro-batch crosses each boundary once forward and once backward, and nothing else."""
    p, r, m = comm.size, comm.rank, 5
    messages, batch, wrong = _run("1f1b", m, comm, adapters, rng)
    nbytes = sum(x.nbytes for x in batch.inputs)
    neighbours = (r > 0) + (r < p - 1)
    return wrong or first(
        counted(r, messages.sent_messages, neighbours * m, "messages that it sends"),
        counted(r, messages.sent_bytes, neighbours * nbytes, "bytes that it sends"),
    )


CHECKS = (
    Check("gpipe proved", 5, "law", (1,), partial(proved, "gpipe")),
    Check("gpipe in order", 5, "shape", (1,), in_order),
    Check("1f1b proved", 15, "law", (1,), partial(proved, "one_f_one_b")),
    Check("1f1b memory", 10, "ledger", (1,), memory),
    Check("1f1b bubble", 10, "time", (1,), idle),
    Check("formulas", 10, "time", (1,), formulas),
    Check("run one by one", 10, "law", ALL, partial(runs, "naive", 3)),
    Check("run gpipe", 10, "law", ALL, partial(runs, "gpipe", 4)),
    Check("run 1f1b", 10, "law", ALL, partial(runs, "1f1b", 9)),
    Check("run a few micro-batches", 5, "law", MANY, partial(runs, "1f1b", 2)),
    Check("run ledger", 10, "ledger", MANY, ledger),
)
