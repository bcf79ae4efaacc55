"""All-reduces side by side: mpirun -n N python benchmarks/collectives.py [--json out.json]

Times the all-reduces of nnmpi, of the MPI library and of shared memory on float32 buffers of 256 B
to 64 MiB, in interleaved rounds, so that noise affects all alike. The time of a call is that of the
slowest rank; a ratio is the median over rounds of the quotient within a round. Every sum is checked
first, to the last bit.

    ring ...  plans of nnmpi.collectives        auto      nnmpi's default choice
    mpi       MPI_Allreduce through nnmpi       window    buffers that live in shared memory
    shared    shared memory, copied in and out  gloo      PyTorch's, with --compare gloo
"""

import argparse
import importlib.util
import sys
import time
import traceback
from collections.abc import Sequence

import numpy as np
from lib import timing
from lib.collectives import plot
from lib.collectives import tables as tables
from lib.collectives.timing import NAMES, REFERENCE, Bench, Point, WrongError, fit
from lib.flags import Parser
from lib.rounds import ratio_of
from lib.timing import Row, Spread, size_name

from nnmpi.arrays import blas
from nnmpi.collectives import verify
from nnmpi.collectives.price import Network
from nnmpi.comm import Comm, world
from nnmpi.comm.transport.mpi import MPI  # initialises MPI
from nnmpi.options import user_code, value_forms

SIZES = ",".join(size_name(256 << 2 * k) for k in range(10))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
    p = Parser(__doc__, "measured and predicted times")
    p.add_argument(
        "--algorithms",
        default=",".join(NAMES),
        help=f"which of {', '.join(NAMES)}, or package.module:NAME of yours",
    )
    p.add_argument("--sizes", default=SIZES, help="such as 256,4KiB,1MiB (from 256 B to 64 MiB)")
    p.add_argument(
        "--seconds",
        type=float,
        default=0.4,
        help="per algorithm and size; at least 3 calls",
    )
    p.add_argument(
        "--lines",
        default=",".join(plot.LINES),
        help="the lines of the plot (default: %(default)s); gloo has a panel of its own",
    )
    p.add_argument("--compare", choices=("gloo",), help="time PyTorch's all-reduce as well")
    a = p.parse_args(argv)
    a.lines = a.lines.split(",")
    a.algorithms = list(dict.fromkeys(name.strip() for name in a.algorithms.split(",")))
    own = [name for name in a.algorithms if user_code.is_named(name)]
    drawn = [name for name in a.lines if name not in (*NAMES, REFERENCE, *own)]
    for unknown in [name for name in a.algorithms if name not in (*NAMES, *own)] + drawn:
        p.error(f"{unknown!r} is not an algorithm; there are {', '.join(NAMES)}, and yours")
    try:
        for name in own:
            verify.proven(name, verify.MANY)
        a.sizes = sorted({round(value_forms.size(words)) for words in a.sizes.split(",")})
    except ValueError as error:
        p.error(str(error))
    for odd in [n for n in a.sizes if n < 4 or n % 4]:
        p.error(f"{odd} bytes are not a whole number of float32 values: use a multiple of 4")
    if not 0 < a.seconds < float("inf"):
        p.error(f"--seconds {a.seconds:g} must be positive and finite, such as 0.4")
    p.check_outputs(a)
    if a.compare:
        if importlib.util.find_spec("torch") is None:
            p.error("PyTorch is not installed (pip install 'nnmpi[bench]'): leave out --compare")
        a.algorithms.append(a.compare)
    return a


def arguments(argv: Sequence[str] | None, raw: MPI.Intracomm) -> argparse.Namespace:
    """The flags on all ranks; rank 0 parses them, prints errors and broadcasts the result."""
    answer: object = None
    if raw.Get_rank() == 0:
        try:
            answer = parse(argv)
        except SystemExit as exit:
            answer = exit.code
    answer = raw.bcast(answer)
    if not isinstance(answer, argparse.Namespace):
        raise SystemExit(answer)
    return answer


def about(raw: MPI.Intracomm) -> Row:
    """The machine and software that the figures belong to."""
    hosts = len(set(raw.allgather(MPI.Get_processor_name())))
    library = MPI.Get_library_version().replace("\0", "").splitlines()[0].split(",")[0]
    return {**timing.machine(), "mpi": " ".join(library.split()), "hosts": hosts}


def measure(bench: Bench, sizes: Sequence[int], network: Network | None) -> list[Point]:
    """Measure all sizes; the first table is printed row by row."""
    shown = bench.comm.rank == 0
    points = []
    if shown:
        print(tables.head(bench.names), flush=True)
    for nbytes in sizes:
        point = bench.point(nbytes, network)
        if point is not None:
            points.append(point)
            if shown:
                print(tables.line(point, bench.names), flush=True)
    return points


def rows_of(point: Point, facts: Row) -> list[Row]:
    """One row per implementation at one size."""
    rows = []
    for name in point.times:
        seconds, spread = point.seconds(name), Spread.of(point.times[name])
        row: Row = {
            "benchmark": "collectives",
            "case": "all_reduce",
            "ranks": point.ranks,
            "bytes": point.nbytes,
            "algorithm": name,
            "seconds": seconds,
            **ratio_of(point.ratios(name), REFERENCE),
            "seconds_low": spread.low,
            "seconds_high": spread.high,
            "bus_bytes_per_second": point.bus(name),
            "rounds": len(point.times[name]),
            "calls": point.calls[name],
        }
        if predicted := point.predicted.get(name):
            row |= {
                "predicted_seconds": predicted,
                "measured_over_predicted": seconds / predicted,
            }
        if name == "auto":
            row["taken"] = point.taken
            if best := point.best():
                row |= {"best": best, "ratio to best": point.ratio(name, best)}
        rows.append(row | facts)
    return rows


def network_row(network: Network, off: Sequence[float], ranks: int, facts: Row) -> Row:
    """The row of the fitted network."""
    return {
        "benchmark": "collectives",
        "case": "network",
        "ranks": ranks,
        "seconds": network.link.alpha,
        "alpha": network.link.alpha,
        "beta": network.link.beta,
        "gamma": network.gamma,
        "ping_pong_over_line_least": min(off),
        "ping_pong_over_line_most": max(off),
        **facts,
    }


def run(comm: Comm, raw: MPI.Intracomm, a: argparse.Namespace) -> None:
    """Measure, print and write the results."""
    start, facts = time.perf_counter(), about(raw)
    report = print if comm.rank == 0 else lambda *_: None
    if comm.rank == 0:
        timing.warn_if_busy(facts)
    report(tables.machine(facts, comm.size))
    network, off = fit(comm) if comm.size > 1 else (None, [])
    if network is not None:
        report(tables.fitted(network, off))
    if "auto" in a.algorithms:
        began = time.perf_counter()
        comm.start(np.zeros(1, "float32")).wait()
        report(f"auto tuned itself in {time.perf_counter() - began:.1f} s")
    bench = Bench(comm, raw, a.algorithms, a.seconds)
    points = measure(bench, a.sizes, network)
    if comm.rank > 0:
        return
    for text in (*tables.skipped(bench.slow), *tables.rest(points, bench.names)):
        print(text)
    seconds = time.perf_counter() - start
    print(f"\n{len(points)} size{'s' * (len(points) != 1)} in {seconds:.0f} s, every sum exact")
    rows = [row for point in points for row in rows_of(point, facts)]
    if network is not None:
        rows.append(network_row(network, off, comm.size, facts))
    timing.finish(a.json, rows)
    if a.plot and points:
        plot.draw(rows, a.lines, tables.machine(facts, comm.size), a.plot)
        print(f"plot written to {a.plot}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark; an error on any rank ends all of them."""
    blas.tune()
    raw = MPI.Intracomm(MPI.COMM_WORLD.Dup())
    try:
        run(world(), raw, arguments(argv, raw))
    except WrongError as wrong:
        if raw.Get_rank() == 0:
            print(f"wrong sum: {wrong}", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception:
        print(f"rank {raw.Get_rank()}: {traceback.format_exc()}", file=sys.stderr, flush=True)
        raw.Abort(1)


if __name__ == "__main__":
    main()
