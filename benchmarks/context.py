"""Context parallelism beside one rank: [mpirun -n 2] python benchmarks/context.py [--json out.json]

    kernels  attention of one layer, forward and back, on one rank, and the part of each of several
             ranks with the keys of the others in hand: what they compute, without messages
    model    a gpt, forward and back, in the same way
    step     a training step of a gpt on the ranks of the job, and on one rank; needs mpirun

Processor time, which other processes disturb least, in interleaved rounds; a ratio is the median
over rounds of the quotient, with its quartiles. A step is wall-clock time, since ranks that wait
for messages compute nothing.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from lib import timing
from lib.flags import Parser
from lib.timing import Row, Spread

from nnmpi import Config, Trainer, blas, nn, tensor
from nnmpi.autograd.ops.attention import self_attention
from nnmpi.backend import Array
from nnmpi.comm import Comm, comm_self, world
from nnmpi.data import Dataset, Split
from nnmpi.kernels import Result
from nnmpi.nn.tracing import trace
from nnmpi.parallel.context.layers import on_positions
from nnmpi.parallel.context.ring import ring_attention
from nnmpi.parallel.context.rules import cut_positions
from nnmpi.parallel.positions import Positions
from nnmpi.parallel.step.executor import StepState

HEADS, SIZE = 6, 64
LAYERS, TOKENS = 2, 256


class Place(NamedTuple):
    """Where a rank would be in its ring."""

    rank: int
    size: int


class InHand(NamedTuple):
    """A ring without messages: the keys of all ranks are here."""

    comm: Place
    positions: Positions
    parts: Sequence[Array]  # keys and values of each rank

    def travelling(self, own: Array) -> Iterator[tuple[int, Array]]:
        """As those of `Ring`."""
        for s in range(self.comm.size):
            r = (self.comm.rank - s) % self.comm.size
            yield r, self.parts[r]

    def exchange(self, s: int, sent: Array, total: Array, causal: bool) -> "InHand":
        """Nothing is sent."""
        return self

    def add(self) -> None:
        """Nothing arrives."""


def pairs(positions: Positions, rank: int) -> int:
    """The pairs of a query and a key that a rank looks at: half of each square on the diagonal."""
    n, found = positions.count(rank), 0
    for r in range(positions.ranks):
        seen = positions.seen(rank, r, causal=True)
        queries = len(range(n)[seen.queries])
        keys = len(range(positions.count(r))[seen.keys])
        found += queries * (keys + 1) // 2 if seen.causal else queries * keys
    return found


def kernels(T: int, ranks: int, rounds: int) -> Iterator[Row]:
    """Rows of one rank and of each of `ranks`."""
    rng, whole = np.random.default_rng(0), Positions(1, T)
    qkv = rng.standard_normal((1, T, HEADS, 3, SIZE), np.float32)
    g = rng.standard_normal((1, T, HEADS, SIZE), np.float32)
    cut = Positions(ranks, T)
    own = [np.ascontiguousarray(qkv[:, cut.of(r)]) for r in range(ranks)]
    kv = [np.ascontiguousarray(x[:, :, :, 1:].transpose(3, 0, 2, 1, 4)) for x in own]

    def passes(op: Callable[..., Result], x: Array, dy: Array) -> None:
        op(x, scale=SIZE**-0.5, causal=True).vjps[0](dy, None)

    runs = [partial(passes, self_attention, qkv, g)]
    for r in range(ranks):
        ring = InHand(Place(r, ranks), cut, kv)
        op = partial(ring_attention, keep_of=None, ring=ring)
        runs.append(partial(passes, op, own[r], np.ascontiguousarray(g[:, cut.of(r)])))
    seen = [{"pairs": pairs(whole, 0)}, *({"pairs": pairs(cut, r)} for r in range(ranks))]
    yield from _compared("kernels", T, runs, seen, rounds)


def model(T: int, ranks: int, rounds: int) -> Iterator[Row]:
    """Rows of a whole model on one rank and on each of `ranks`."""
    x = np.random.default_rng(0).integers(0, TOKENS, (1, T + 1))
    loss, runs = nn.CrossEntropyLoss(), []

    def passes(net: nn.Module, own: Array) -> None:
        loss(net(tensor(x[:, own])), x[:, own + 1]).backward()

    for rank in range(-1, ranks):
        net = nn.GPT(LAYERS, HEADS, HEADS * SIZE, TOKENS, T)
        cut = Positions(1, T)
        if rank >= 0:
            graph = trace(net, lambda n: ((tensor(np.zeros((n, T), np.int64)),), {}), "float32")
            cut = cut_positions(graph, ranks, T)
            shapes = [(2, 1, HEADS, cut.count(r), SIZE) for r in range(ranks)]
            parts = [np.random.default_rng(0).standard_normal(s, np.float32) for s in shapes]
            on_positions(net, graph, InHand(Place(rank, ranks), cut, parts))
        runs.append(partial(passes, net, cut.of(max(rank, 0))))
    yield from _compared("model", T, runs, [{}] * (ranks + 1), rounds)


def _compared(
    section: str, T: int, runs: Sequence[Callable[[], None]], facts: Sequence[Row], rounds: int
) -> Iterator[Row]:
    """Rows of the first run, which is that of one rank, and of the others."""
    for run in runs:
        run()
    times = np.array([[timing.measure(run, 1).cpu for run in runs] for _ in range(rounds)])
    one, slowest = times[:, 0], times[:, 1:].max(axis=1)
    speed = _spread(timing.ratio(one.tolist(), slowest.tolist()))
    yield _row(section, T, 1, one, facts[0])
    for r, of_rank in enumerate(facts[1:]):
        about = {"rank": r, "against": "one rank, the slowest rank"}
        yield _row(section, T, len(runs) - 1, times[:, r + 1], about | of_rank | speed)


def step(comm: Comm, T: int, rounds: int) -> Iterator[Row]:
    """A row of the ranks of the job, and on the first rank one of it alone."""
    x = np.random.default_rng(0).integers(0, TOKENS, (2 * rounds + 4, T + 1))
    halves = (np.ascontiguousarray(x[:, i : i + T]) for i in (0, 1))
    split = Split(*halves)
    data = Dataset("tokens", split, split, TOKENS, "")
    build = partial(nn.GPT, LAYERS, HEADS, HEADS * SIZE, TOKENS, T)
    options = {"batch_size": 1, "epochs": 1, "optimizer": "adamw"}
    trainers = [Trainer(Config(cp=comm.size, **options), build, data, comm)]
    if comm.rank == 0:
        trainers.append(Trainer(Config(**options), build, data, comm_self()))
    together, *alone = map(_steps, trainers)
    times = np.zeros((rounds + 1, 2))
    for row in times:
        comm.barrier()
        row[0] = timing.measure(partial(next, together), 1).wall
        comm.barrier()
        for steps in alone:
            row[1] = timing.measure(partial(next, steps), 1).wall
        comm.broadcast(row)
    speed = timing.ratio(times[1:, 1].tolist(), times[1:, 0].tolist())
    yield _row("step", T, 1, times[1:, 1], {})
    yield _row("step", T, comm.size, times[1:, 0], {"against": "one rank"} | _spread(speed))


def _steps(trainer: Trainer) -> Iterator[object]:
    trainer.model.train()
    return trainer.strategy.steps(trainer.train, StepState())


def _row(section: str, T: int, ranks: int, times: np.ndarray, facts: Row) -> Row:
    named = {"benchmark": "context", "section": section, "case": f"T={T}", "ranks": ranks}
    return {**named, "seconds": float(np.median(times)), **facts}


def _spread(speed: Spread) -> Row:
    return {"ratio": speed.median, "ratio_low": speed.low, "ratio_high": speed.high}


def line(row: Row) -> str:
    """A row in one line."""
    who = f"rank {row['rank']} of {row['ranks']}" if "rank" in row else f"{row['ranks']} rank(s)"
    looked = f"{row['pairs']:>14,} pairs" if "pairs" in row else ""
    speed = f"   one rank / this {row['ratio']:.2f}" if "ratio" in row else ""
    what = f"{row['section']:<9}{row['case']:<9}{who:<13}"
    return f"{what}{row['seconds'] * 1e3:>10.1f} ms{looked}{speed}"


def parse(argv: Sequence[str] | None, prints: bool) -> argparse.Namespace:
    """Parse and check the flags."""
    parser = Parser(__doc__, "nothing", prints)
    parser.add_argument("--length", type=int, default=4096, help="positions (default 4096)")
    parser.add_argument("--ranks", type=int, default=2, help="of the kernels (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="of each timing (default 5)")
    a = parser.parse_args(argv)
    parser.check_outputs(a)
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Measure on every rank of the job; rank 0 prints and writes."""
    blas.tune()
    comm = world()
    a = parse(argv, comm.rank == 0)
    facts, rows = timing.machine(), list[Row]()
    if comm.rank == 0:
        timing.warn_if_busy(facts)
    if comm.size > 1:
        rows += step(comm, a.length, a.rounds)
    else:
        rows += kernels(a.length, a.ranks, a.rounds)
        rows += model(a.length, a.ranks, a.rounds)
    if comm.rank == 0:
        for row in rows:
            print(line(row))
        timing.finish(a.json, [row | facts for row in rows])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
