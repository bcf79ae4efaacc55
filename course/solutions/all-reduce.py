"""All-reduce: a solution."""

import time
from collections.abc import Callable

import numpy as np

from nnmpi.collectives import Algorithm, Step, only
from nnmpi.comm import Comm

# ---- by messages


def server_all_reduce(comm: Comm, x: np.ndarray) -> None:
    if comm.rank > 0:
        comm.send(x, 0)
        comm.recv(x, 0)
        return
    theirs = np.empty_like(x)
    for r in range(1, comm.size):
        comm.recv(theirs, r)
        x += theirs
    for r in range(1, comm.size):
        comm.send(x, r)


def ring_all_reduce(comm: Comm, x: np.ndarray) -> None:
    p, n, r = comm.size, len(x), comm.rank

    def chunk(c: int) -> np.ndarray:
        c %= p
        return x[n * c // p : n * (c + 1) // p]

    for t in range(2 * (p - 1)):
        adds = t < p - 1
        into = chunk(r - t - 1)
        arrives = np.empty_like(into)
        sent = comm.isend(chunk(r - t), (r + 1) % p)
        comm.recv(arrives, (r - 1) % p)
        sent.wait()
        into[:] = into + arrives if adds else arrives


def tree_all_reduce(comm: Comm, x: np.ndarray) -> None:
    p, r = comm.size, comm.rank
    distances = [1 << t for t in range((p - 1).bit_length())]
    theirs = np.empty_like(x)
    for d in distances:
        if r % (2 * d) == d:
            comm.send(x, r - d)
        elif r % (2 * d) == 0 and r + d < p:
            comm.recv(theirs, r + d)
            x += theirs
    for d in reversed(distances):
        if r % (2 * d) == d:
            comm.recv(x, r - d)
        elif r % (2 * d) == 0 and r + d < p:
            comm.send(x, r + d)


# ---- as values


def ring_step(t: int, r: int | np.ndarray, p: int) -> Step:
    out, into = (r - t) % p, (r - t - 1) % p
    return Step((r + 1) % p, (out, out + 1), (r - 1) % p, (into, into + 1), t < p - 1)


def tree_step(t: int, r: int | np.ndarray, p: int) -> Step:
    levels = (p - 1).bit_length()
    up = t < levels
    d = 1 << (t if up else 2 * levels - 1 - t)
    leaf, root = r % (2 * d) == d, (r % (2 * d) == 0) & (r + d < p)
    if up:
        return Step(only(leaf, r - d), (0, 1), only(root, r + d), (0, 1), True)
    return Step(only(root, r + d), (0, 1), only(leaf, r - d), (0, 1), False)


RING = Algorithm(lambda p: 2 * (p - 1), lambda p: p, ring_step)
TREE = Algorithm(lambda p: 2 * (p - 1).bit_length(), lambda p: 1, tree_step)


# ---- what they cost


def cost(name: str, p: int, nbytes: float, alpha: float, beta: float) -> float:
    levels = (p - 1).bit_length()
    return {
        "server": 2 * (p - 1) * (alpha + nbytes * beta),
        "ring": 2 * (p - 1) * (alpha + nbytes / p * beta),
        "tree": 2 * levels * (alpha + nbytes * beta),
    }[name]


def crossover(p: int, alpha: float, beta: float) -> float:
    levels = (p - 1).bit_length()
    return (p - 1 - levels) * alpha / ((levels - (p - 1) / p) * beta)


def seconds_of(
    comm: Comm, all_reduce: Callable[[Comm, np.ndarray], None], x: np.ndarray, repeats: int
) -> float:
    times = []
    for _ in range(repeats):
        comm.barrier()
        began = time.perf_counter()
        all_reduce(comm, x.copy())
        took = np.zeros(comm.size)
        took[comm.rank] = time.perf_counter() - began
        server_all_reduce(comm, took)
        times.append(took.max())
    return min(times)
