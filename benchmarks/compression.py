"""When compressed gradients pay: mpirun -n 2 python benchmarks/compression.py [--json FILE]

Ranks sum gradients with the shapes of a model: through shared memory, round a ring of messages, and
compressed. Sums are timed in interleaved rounds, and a ratio is to the ring, round by round.

    coding   the time to encode, and to decode the terms of one rank, on a rank alone
    pays     coding + bytes / B < bytes of the ring / B, for links of less than B bytes a second
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from statistics import median

import numpy as np
from lib import timing
from lib.timing import Row

from nnmpi import Config, Trainer
from nnmpi.addons.compression.codecs import CODECS, CodecInput
from nnmpi.addons.compression.compressed import BYTES_OF, Shape
from nnmpi.addons.compression.exchange import Exchange
from nnmpi.addons.compression.options import compression
from nnmpi.comm import Comm, comm_self, world

CODED = ("topk:0.01", "sign", "powersgd:1", "powersgd:4", "int8")
GBIT = 1e9 / 8


def shapes_of(model: str, data: str) -> list[Shape]:
    """The parameters of a model as matrices."""
    with Trainer(Config(model=model, data=data), comm=comm_self()) as trainer:
        shapes = [p.shape for p in trainer.model.parameters()]
    return [(s[0], prod(s[1:])) if len(s) > 1 else (1, *s) for s in shapes]


def summed(comm: Comm, algorithm: str, row: np.ndarray) -> None:
    """Sums a copy of the gradients."""
    comm.all_reduce(row.copy(), algorithm)


def coded(comm: Comm, spec: str, shapes: Sequence[Shape], row: np.ndarray) -> None:
    """Sums a copy of the gradients, compressed."""
    name, number = compression(spec)
    sizes, factors = [*map(prod, shapes)], row.copy() if CODECS[name].has_factors else None
    bucket = CodecInput(row.copy(), shapes, sizes, row.dtype, comm, "ring", factors)
    Exchange(CODECS[name].sum(bucket, number)).wait()


def measured(comm: Comm, shapes: Sequence[Shape], rounds: int) -> list[Row]:
    """A row for each way to sum."""
    row = np.random.default_rng(comm.rank).standard_normal(sum(map(prod, shapes)), np.float32)
    ways: dict[str, Callable[[], None]] = {
        name: partial(summed, comm, name, row) for name in ("ring", "shared")
    }
    ways |= {spec: partial(coded, comm, spec, shapes, row) for spec in CODED}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            comm.barrier()
            taken = np.array([timing.measure(way, 1).wall])
            comm.broadcast(taken)
            times[name] += [float(taken[0])] * (i > 0)  # the first round is a warm-up
    ring = 2 * (comm.size - 1) / comm.size * row.nbytes
    rows = list[Row]()
    for name, seconds in times.items():
        about: Row = {"benchmark": "compression", "case": name, "ranks": comm.size}
        nbytes = {"ring": ring, "shared": 0.0}.get(name)
        if nbytes is None:
            codec, number = compression(name)
            nbytes = BYTES_OF[codec](shapes, number, 4, comm.size).nbytes
            alone = partial(coded, comm_self(), name, shapes, row)
            coding = min(timing.measure(alone, 1).cpu for _ in range(rounds))
            about |= {"coding": coding, "gbit": (ring - nbytes) / coding / GBIT}
        ratio = timing.ratio(seconds, times["ring"]).median
        rows.append({**about, "seconds": median(seconds), "bytes": nbytes, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="gpt:4x4x128")
    parser.add_argument("--data", default="text")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json")
    options, comm = parser.parse_args(), world()
    rows = measured(comm, shapes_of(options.model, options.data), options.rounds)
    if comm.rank == 0:
        print(f"{'':12}{'a sum':>10}{'/ ring':>8}{'sent':>10}{'coding':>10}   pays below")
        for r in rows:
            line = f"{r['case']:12}{r['seconds'] * 1e3:7.2f} ms{r['ratio']:8.2f}"
            line += f"{r['bytes'] / 1e6:7.3f} MB"
            if "gbit" in r:
                line += f"{r['coding'] * 1e3:7.2f} ms{r['gbit']:7.2f} Gbit/s"
            print(line)
        timing.finish(options.json, [row | timing.machine() for row in rows])


if __name__ == "__main__":
    main()
