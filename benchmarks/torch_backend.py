"""PyTorch's collectives over nnmpi and over Gloo: mpirun -n N python benchmarks/torch_backend.py

Both backends are groups of the same processes, and take turns: a round times each once, and a ratio
is the median over rounds of the quotient within a round (Gloo over nnmpi: above 1 nnmpi is faster).
The time of a call is that of the slowest rank.

    all-reduce   float32, by `torch.distributed.all_reduce`, of 1 KB to 64 MB
    MPI          MPI_Allreduce of the same memory, by the backend nnmpi with use("mpi")
    step         a step of DistributedDataParallel: forward and backward pass, sums, and SGD
"""

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lib import timing
from lib.flags import Parser
from lib.rounds import ratio_of
from lib.timing import Row
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nnmpi.torch

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24, 1 << 26)
WIDTHS = {"small step": (64, 256, 10), "step": (784, 1024, 1024, 1024, 10)}
BATCH = 64
BACKENDS = ("nnmpi", "MPI", "gloo")

Timed = dict[str, Callable[[], Any]]
"""What is timed, by the backend that does it."""


def sums(nbytes: int, gloo: Any, mpi: Any) -> Timed:
    x = torch.zeros(nbytes // 4)
    groups = zip(BACKENDS, (None, mpi, gloo), strict=True)
    return {name: lambda g=g: dist.all_reduce(x, group=g) for name, g in groups}


def steps(widths: Sequence[int], gloo: Any, mpi: Any) -> Timed:
    groups = zip(BACKENDS, (None, mpi, gloo), strict=True)
    return {name: step(widths, group) for name, group in groups}


def step(widths: Sequence[int], group: Any) -> Callable[[], Any]:
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers[:-1]), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, widths[0]), torch.arange(BATCH) % widths[-1]

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def seconds(timed: Timed, rounds: int, least: float) -> dict[str, list[float]]:
    """The seconds of a call by each, on the slowest rank, in each round."""
    found: dict[str, list[float]] = {name: [] for name in timed}
    calls = dict.fromkeys(timed, 1)
    for n in range(-2, rounds):  # two rounds warm up, and say how many calls take long enough
        for name, call in timed.items():
            nnmpi.torch.comm().barrier()
            start = time.perf_counter()
            for _ in range(calls[name]):
                call()
            taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if n == -1:
                calls[name] = max(1, min(1000, int(least / taken.item())))
            elif n >= 0:
                found[name].append(taken.item() / calls[name])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    p = Parser(__doc__, "nothing")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--seconds", type=float, default=0.02, help="of a backend in a round")
    p.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    a = p.parse_args(argv)
    p.check_outputs(a)
    torch.set_num_threads(1)
    dist.init_process_group("nnmpi")
    gloo, mpi = dist.new_group(backend="gloo"), dist.new_group(backend="nnmpi")
    nnmpi.torch.use("mpi", mpi)
    cases = {f"{int(n):,} B": sums(int(n), gloo, mpi) for n in a.sizes.split(",")}
    cases |= {name: steps(widths, gloo, mpi) for name, widths in WIDTHS.items()}
    rows: list[Row] = []
    is_first = dist.get_rank() == 0
    for case, timed in cases.items():
        found = seconds(timed, a.rounds, a.seconds)
        for name in BACKENDS:
            ratio = timing.ratio(found["gloo"], found[name])
            row = {"case": case, "backend": name, "ranks": dist.get_world_size()}
            row |= {"seconds": float(np.median(found[name])), **ratio_of(ratio, "gloo")}
            rows.append(row)
        if is_first:
            texts = (
                f"{r['backend']} {r['seconds'] * 1e6:,.0f} us ({r['ratio']:.2f}, "
                f"{r['ratio_low']:.2f} to {r['ratio_high']:.2f})"
                for r in rows[-len(BACKENDS) :]
            )
            print(f"{case:>14}  {'   '.join(texts)}", flush=True)
    if is_first:
        timing.finish(a.json, rows)
    dist.barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main())
