"""Pipelines: a solution."""

from typing import Any

import numpy as np

from nnmpi.comm import Comm
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import Schedule

# ---- schedules as values


def gpipe(p: int, m: int) -> list[list[Op]]:
    ranks = []
    for r in range(p):
        forward = [Op(Kind.F, i, r) for i in range(m)]
        ranks.append(forward + [Op(Kind.B, i, r) for i in reversed(range(m))])
    return ranks


def one_f_one_b(p: int, m: int) -> list[list[Op]]:
    ranks = []
    for r in range(p):
        ahead = min(p - 1 - r, m)
        ops = [Op(Kind.F, i, r) for i in range(ahead)]
        for i in range(ahead, m):
            ops += [Op(Kind.F, i, r), Op(Kind.B, i - ahead, r)]
        ops += [Op(Kind.B, i, r) for i in range(m - ahead, m)]
        ranks.append(ops)
    return ranks


SCHEDULE = Schedule("mine", lambda p, m, v: one_f_one_b(p, m), lambda p, m, v: None, "")


# ---- what they cost


def bubble(p: int, m: int) -> float:
    return (p - 1) / m


def held(schedule: str, p: int, m: int, r: int) -> int:
    return m if schedule == "gpipe" else min(p - r, m)


# ---- running one


def run(
    comm: Comm, passes: list[Op], stage: Any, inputs: list[np.ndarray], targets: list[np.ndarray]
) -> None:
    r, last = comm.rank, comm.size - 1
    rows = sum(len(x) for x in inputs)
    kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    sent = []
    for op in passes:
        i = op.micro
        if op.kind is Kind.F:
            x = inputs[i]
            if r > 0:
                x = np.empty_like(inputs[i])
                comm.recv(x, r - 1, 2 * i)
            y = stage.forward(x)
            kept[i] = x, y
            if r < last:
                sent.append(comm.isend(y, r + 1, 2 * i))
        else:
            x, y = kept.pop(i)
            if r == last:
                gy = (y - targets[i]) / rows
            else:
                gy = np.empty_like(y)
                comm.recv(gy, r + 1, 2 * i + 1)
            gx = stage.backward(x, y, gy)
            if r > 0:
                sent.append(comm.isend(gx, r - 1, 2 * i + 1))
    for request in sent:
        request.wait()
