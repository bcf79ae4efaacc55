"""The checks of the assignment all-reduce."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from classroom import (
    Check,
    FaultError,
    Finding,
    Messages,
    any_rank,
    apart,
    counted,
    differs,
    first,
    number,
)
from classroom.compare import times
from classroom.remote import reference_ring
from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.step import PlanError
from nnmpi.collectives.verify import verify
from nnmpi.comm import Comm

ALLOWED = {"nnmpi.collectives": ("Algorithm", "Step", "only")}

Rng = np.random.Generator
ALL, MANY = (1, 2, 3, 4, 8), (2, 3, 4, 8)
GENEROUS = 20.0  # times as long as the reference that a student's ring may take
PRICED = {"ring": ALGORITHMS["ring"], "tree": ALGORITHMS["tree"]}


# ---- the law: each rank has the sum


def sums(name: str, comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """All ranks end with the sum, for lengths that p divides, that it does not, and below p."""
    wrong: Finding | None = None
    for n in (2 * comm.size, 24 + 5, 1):
        inputs = rng.integers(-9, 10, (comm.size, n)).astype(float)
        x = inputs[comm.rank].copy()
        messages = Messages(comm)
        getattr(adapters, f"{name}_all_reduce")(messages, x)
        wrong = wrong or differs(comm.rank, x, inputs.sum(0), f"of n = {n}: x")
        if messages.unfinished:
            wrong = wrong or Finding(comm.rank, f"{messages.unfinished[0]} was never waited for")
        if any_rank(comm, wrong):
            break
    return wrong


def same_bits(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """All ranks have the same bits, though floating-point sums depend on their order."""
    wrong: Finding | None = None
    for name in ("ring", "tree"):
        inputs = rng.standard_normal((comm.size, 50))
        x = inputs[comm.rank].copy()
        getattr(adapters, f"{name}_all_reduce")(Messages(comm), x)
        of_0 = x.copy()
        comm.broadcast(of_0)
        wrong = wrong or differs(comm.rank, x, inputs.sum(0), f"{name}: x")
        if not wrong and (x != of_0).any():  # sums that agree within rounding
            i = int(np.argmax(x != of_0))
            both = f"{float(x[i])!r}, and {float(of_0[i])!r} on rank 0"
            wrong = Finding(comm.rank, f"{name}: x[{i}] is {both}: let one rank add it up")
    return wrong


# ---- the ledger: messages, bytes and rounds


def ledger(name: str, comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """Messages and bytes of each rank, and the rounds of all, are those of the formula."""
    p, r, n = comm.size, comm.rank, 16 * comm.size
    messages = Messages(comm)
    getattr(adapters, f"{name}_all_reduce")(messages, np.ones(n))
    levels = (p - 1).bit_length()
    below = [d for d in (1 << t for t in range(levels)) if r % (2 * d) == 0 and r + d < p]
    sends = {"server": p - 1 if r == 0 else 1, "ring": 2 * (p - 1), "tree": len(below) + (r > 0)}
    rounds = {"server": 2 * (p - 1), "ring": 2 * (p - 1), "tree": 2 * levels}[name]
    nbytes = sends[name] * 8 * n // (p if name == "ring" else 1)
    clocks = np.zeros(p)
    clocks[r] = messages.clock
    comm.all_reduce(clocks, "ring")
    return first(
        counted(r, messages.sent_messages, sends[name], "messages that it sends"),
        counted(r, messages.sent_bytes, nbytes, "bytes that it sends"),
        counted(r, clocks.max(), rounds, "rounds until the last rank is done"),
    )


# ---- values


def proved(name: str, comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """The proof, for 1 to 17 ranks, that all end with one sum and that no message is lost."""
    for p in (4, *range(2, 18), 1):
        if wrong := _unproved(name, p, adapters):
            return wrong
    return None


def _unproved(name: str, p: int, adapters: Any) -> Finding | None:
    try:
        verify(getattr(adapters, name), p)
    except PlanError as error:
        if error.__cause__ is not None:  # the student's step raises
            raise
        return Finding(0, f"{name} of {p} ranks is no all-reduce: {error}")
    return None


def carried_out(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """Both values run over the Comm as they are."""
    inputs = rng.integers(-9, 10, (comm.size, 29)).astype(float)
    wrong = first(*(_unproved(name, comm.size, adapters) for name in ("RING", "TREE")))
    for name in () if wrong else ("RING", "TREE"):
        x = inputs[comm.rank].copy()
        comm.carry_out(getattr(adapters, name), x)
        wrong = wrong or differs(comm.rank, x, inputs.sum(0), f"{name}: x")
    return wrong


# ---- costs


def priced(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """The formulas give what the simulator says that these algorithms cost."""
    for p in (2, 4, 5, 8, 13):
        alpha, beta = rng.uniform(1e-6, 1e-4), rng.uniform(1e-10, 1e-8)
        nbytes = float(p * rng.integers(1, 10**6))
        network = Network(Link(alpha, beta))
        seconds = {name: price(a, p, nbytes, network).seconds for name, a in PRICED.items()}
        seconds["server"] = 2 * (p - 1) * (alpha + nbytes * beta)
        for name, expected in seconds.items():
            got = adapters.cost(name, p, nbytes, alpha, beta)
            label = (
                f"cost of {name}, {p} ranks, {nbytes:g} bytes, alpha {alpha:.3g}, beta {beta:.3g}"
            )
            if wrong := differs(0, got, expected, label, rtol=1e-9):
                return wrong
    return None


def crossed(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """At the crossover the simulator gives ring and tree the same price."""
    for p in (4, 7, 16):
        alpha, beta = rng.uniform(1e-6, 1e-4), rng.uniform(1e-10, 1e-8)
        nbytes = adapters.crossover(p, alpha, beta)
        label = f"crossover of {p} ranks, alpha {alpha:.3g}, beta {beta:.3g}"
        if wrong := number(0, nbytes, label):
            return wrong
        network = Network(Link(alpha, beta))
        ring, tree = (price(a, p, nbytes, network).seconds for a in PRICED.values())
        if not abs(ring - tree) <= 1e-9 * tree:
            of_ring, of_tree = apart(ring, tree)
            text = f"{label}: at {nbytes:g} bytes a ring takes {of_ring} s, a tree {of_tree} s"
            levels = (p - 1).bit_length()
            right = (p - 1 - levels) * alpha / ((levels - (p - 1) / p) * beta)
            factor = f": the crossover is {times(nbytes / right)}" if nbytes else ""
            return Finding(0, text + factor)
    return None


def stopwatch(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """The stopwatch takes the slowest rank of the fastest repetition, on all ranks."""
    calls = list[int]()

    def sleeps(messages: Any, x: np.ndarray) -> None:
        calls.append(1)
        time.sleep(0.02 * (messages.rank + 1) + 1.3 * (len(calls) == 1))

    took = adapters.seconds_of(Messages(comm), sleeps, np.zeros(4), 3)
    if wrong := number(comm.rank, took, "seconds_of"):
        return wrong
    least, text = 0.02 * comm.size, ""
    if len(calls) != 3:
        text = f"all_reduce was called {len(calls)} times in 3 repetitions"
    elif took < 0.9 * least:
        text = f"the slowest rank sleeps {least:.2f} s, but seconds_of is {took:.3f}"
    elif took > 0.4:
        text = f"a repetition takes {least:.2f} s, the first 1.3 s more; seconds_of is {took:.3f}"
    alike = np.array([took])
    comm.broadcast(alike)
    if not text and alike[0] != took:
        text = "seconds_of is {}, and {} on rank 0".format(*apart(took, alike[0]))
    return Finding(comm.rank, text) if text else None


def measured(comm: Comm, adapters: Any, rng: Rng) -> Finding | None:
    """The ring takes about as long as one of ours; prints what all three take beside their cost."""
    x, seconds = np.ones(1 << 15), dict[str, float]()
    for name in ("server", "ring", "tree"):
        f = getattr(adapters, f"{name}_all_reduce")
        seconds[name] = _fastest(comm, f, x, name)
    ring = reference_ring(adapters)
    ours = _fastest(comm, ring, x, "")
    small = _fastest(comm, ring, np.ones(comm.size), "")
    rounds = 2 * (comm.size - 1)
    alpha = small / rounds
    beta = max(ours - small, 1e-9) / (rounds / comm.size * x.nbytes)
    for name in seconds if comm.rank == 0 else ():
        predicted = adapters.cost(name, comm.size, x.nbytes, alpha, beta)
        if wrong := number(0, predicted, f"cost of {name}"):
            return wrong
        row = f"measured {seconds[name] * 1e3:8.3f} ms   by formula {predicted * 1e3:8.3f} ms"
        print(f"{comm.size} ranks, {x.nbytes:,} bytes   {name:7} {row}", flush=True)
    ratio = seconds["ring"] / ours
    text = f"the ring takes {ratio:.0f} times as long as ours in the same run, {GENEROUS:g} allowed"
    return Finding(comm.rank, text) if ratio > GENEROUS else None


def _fastest(comm: Comm, f: Callable[[Any, np.ndarray], None], x: np.ndarray, name: str) -> float:
    """The seconds of the fastest of some calls, each as long as on its slowest rank; ends the check
    if the sum is wrong."""
    times = list[float]()
    for _ in range(4):
        messages, copy, took = Messages(comm), x.copy(), np.zeros(comm.size)
        comm.barrier()
        began = time.perf_counter()
        f(messages, copy)
        took[comm.rank] = time.perf_counter() - began
        if wrong := differs(comm.rank, copy, comm.size * x, f"{name}: x"):
            raise FaultError(wrong.text)
        comm.all_reduce(took, "ring")
        times.append(float(took.max()))
    return min(times)


CHECKS = (
    Check("server sums", 5, "law", ALL, partial(sums, "server")),
    Check("server ledger", 5, "ledger", MANY, partial(ledger, "server")),
    Check("ring sums", 15, "law", ALL, partial(sums, "ring")),
    Check("ring ledger", 10, "ledger", MANY, partial(ledger, "ring")),
    Check("tree sums", 10, "law", ALL, partial(sums, "tree")),
    Check("tree ledger", 10, "ledger", MANY, partial(ledger, "tree")),
    Check("same bits", 5, "law", MANY, same_bits),
    Check("ring proved", 10, "law", (1,), partial(proved, "RING")),
    Check("tree proved", 10, "law", (1,), partial(proved, "TREE")),
    Check("values carried out", 5, "law", ALL, carried_out),
    Check("cost by formula", 5, "time", (1,), priced),
    Check("crossover", 3, "time", (1,), crossed),
    Check("stopwatch", 4, "time", (3,), stopwatch),
    Check("measured", 3, "time", (4,), measured),
)
