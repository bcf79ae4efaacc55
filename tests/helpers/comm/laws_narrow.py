"""Laws of narrow sums: 16-bit floats are rounded after each addition, and travel in 16 bits."""

from itertools import product

import ml_dtypes  # noqa: F401 - adds bfloat16 to NumPy
import numpy as np
from helpers.comm.brought import by_hand, gathered, part, rough

from nnmpi.collectives.algorithms import ALGORITHMS, REDUCE_SCATTERS, REDUCES
from nnmpi.comm import Comm
from nnmpi.comm.allreduce.dispatch import NAMES

UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of a rounding."""


def narrow(comm: Comm) -> Comm:
    return comm.split(0, narrow_sums=True)


def narrow_sums_have_the_bits_of_their_algorithm(comm: Comm) -> None:
    """Those of additions in 16 bits, in its order; in halves, too."""
    n, p, there = 157, comm.size, narrow(comm)
    for dtype in UNITS:
        rows = [rough(r, n, dtype) for r in range(p)]
        for name in ALGORITHMS:
            want = by_hand(ALGORITHMS[name], rows)[comm.rank]
            for finish in (there.all_reduce, lambda x, name: there.start(x, name).wait()):
                x = rough(comm.rank, n, dtype)
                finish(x, name)
                assert x.tobytes() == want.tobytes(), (name, dtype)
        for name in REDUCE_SCATTERS:
            want, mine = by_hand(REDUCE_SCATTERS[name], rows)[comm.rank], comm.chunk(n)
            x = rough(comm.rank, n, dtype)
            there.start_reduce_scatter(x, name).wait()
            assert x[mine].tobytes() == want[mine].tobytes(), (name, dtype)


def narrow_sums_are_within_their_bound(comm: Comm) -> None:
    """p - 1 roundings at most, whatever the algorithm; all ranks have the same bits."""
    n, p, there = 1001, comm.size, narrow(comm)
    for name, (dtype, unit) in product(NAMES, UNITS.items()):
        x = rough(comm.rank, n, dtype)
        there.all_reduce(x, name)
        rows = gathered(comm, x)
        assert (rows == rows[0]).all(), (name, dtype)
        terms = [rough(r, n, dtype).astype("f8") for r in range(p)]
        bound = ((1 + unit) ** (p - 1) - 1) * np.sum(np.abs(terms), 0)
        # roundings to numbers below float16's normal ones are absolute
        off = abs(x.astype("f8") - np.sum(terms, 0)) - bound
        assert (off <= p * np.finfo("float16").smallest_subnormal).all(), (name, dtype)


def narrow_sums_send_16_bits(comm: Comm) -> None:
    """Partial sums, too: two thirds of what a ring sends with those in float32. Other types are
    as without it."""
    n, p, there = 24 * comm.size, comm.size, narrow(comm)
    chunks = 2 * (p - 1) * n // p
    for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("int16", 2)):
        there.ledger.reset()
        x = part(comm.rank, n, dtype)
        there.all_reduce(x, "ring")
        assert sum(there.ledger.sent_bytes) == chunks * size
        assert sum(there.ledger.received_bytes) == chunks * size


def a_reduction_to_one_rank_is_narrow_too(comm: Comm) -> None:
    there, n = narrow(comm), 33
    rows = [rough(r, n, "bfloat16") for r in range(comm.size)]
    for name in REDUCES:
        x = rows[comm.rank].copy()
        there.reduce(x, 0, name)
        want = by_hand(REDUCES[name], rows)[0] if comm.rank == 0 else rows[comm.rank]
        assert x.tobytes() == want.tobytes(), name
