"""Laws of reduce-scatter and all-gather: parts of any lengths, and several under way."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from helpers.comm.brought import Array, by_hand, part, rough, total

from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.comm.arguments import accumulator
from nnmpi.comm.progress import Work

Parts = tuple[int, ...] | None
TYPES = ["float64", "float16", "int64", "complex64"]


def parts_of(p: int) -> list[Parts]:
    """Even, growing, all of rank 0, all of the last rank, with gaps, and empty."""
    gaps = tuple(0 if r % 2 else 17 + r for r in range(p))
    return [
        None,
        tuple(range(1, p + 1)),
        (23,) + (0,) * (p - 1),
        (0,) * (p - 1) + (23,),
        gaps,
        (0,) * p,
    ]


def length(parts: Parts, p: int) -> int:
    return 5 * p + 2 if parts is None else sum(parts)


def own(comm: Comm, n: int, parts: Parts) -> slice:
    if parts is None:
        return comm.chunk(n)
    return slice(sum(parts[: comm.rank]), sum(parts[: comm.rank + 1]))


def uneven_parts(comm: Comm) -> None:
    p = comm.size
    for parts, dtype, name in product(parts_of(p), TYPES, REDUCE_SCATTERS):
        n = length(parts, p)
        want, mine = total(p, n, dtype), own(comm, n, parts)
        x, y = part(comm.rank, n, dtype), part(comm.rank, n, dtype)
        got = comm.reduce_scatter(x, name, parts)
        assert got.size == 0 or np.shares_memory(got, x)
        np.testing.assert_array_equal(got, want[mine], f"{name} {dtype} {parts}")
        comm.start_reduce_scatter(y, name, parts).wait()
        np.testing.assert_array_equal(y[mine], want[mine], f"{name} {dtype} {parts}")
        for gather in (comm.all_gather, lambda *a: comm.start_all_gather(*a).wait()):
            z = np.full(n, 99, dtype)
            z[mine] = want[mine]
            gather(z, name, parts)
            np.testing.assert_array_equal(z, want, f"{name} {dtype} {parts}")


def parts_may_be_numpy_integers(comm: Comm) -> None:
    parts = np.arange(1, comm.size + 1)
    x = np.zeros((parts.sum(), 1))
    x[own(comm, x.size, tuple(parts))] = comm.rank
    comm.all_gather(x, parts=parts)
    np.testing.assert_array_equal(x[:, 0], np.repeat(np.arange(comm.size), parts))


def halves_have_the_bits_of_their_algorithm(comm: Comm) -> None:
    """Also in 16 bits, which are summed in float32; a gather changes no bits."""
    n, p = 157, comm.size
    for name, dtype in product(REDUCE_SCATTERS, map(np.dtype, ("float32", "float16"))):
        rows = [rough(r, n, dtype).astype(accumulator(dtype)) for r in range(p)]
        sums = by_hand(REDUCE_SCATTERS[name], rows)[comm.rank].astype(dtype)
        mine = comm.chunk(n)
        for start in (False, True):
            x = rough(comm.rank, n, dtype)
            if start:
                comm.start_reduce_scatter(x, name).wait()
            else:
                comm.reduce_scatter(x, name)
            assert x[mine].tobytes() == sums[mine].tobytes(), (name, dtype)
    bits = np.arange(1 << 16).astype(np.uint16)
    x = np.zeros_like(bits)
    x[comm.chunk(x.size)] = bits[comm.chunk(x.size)]
    comm.start_all_gather(x.view(np.float16)).wait()
    assert x.tobytes() == bits.tobytes()


def both_halves_are_the_all_reduce(comm: Comm) -> None:
    """Bit for bit: ring, direct exchange and halving are a reduce-scatter and an all-gather."""
    for name, dtype in product(REDUCE_SCATTERS, ("float32", "float16")):
        x, y = rough(comm.rank, 301, dtype), rough(comm.rank, 301, dtype)
        comm.all_reduce(x, name)
        comm.start_reduce_scatter(y, name).wait()
        comm.start_all_gather(y, name).wait()
        assert x.tobytes() == y.tobytes(), (name, dtype)


def many_halves_under_way(comm: Comm) -> None:
    """Each rank waits for the same works in an order of its own; some ranks only call."""
    p = comm.size
    works: list[tuple[Work, Array, Array]] = []
    for i, (parts, name) in enumerate(product(parts_of(p), REDUCE_SCATTERS)):
        n = length(parts, p)
        want, mine = total(p, n, "float32"), own(comm, n, parts)
        x, y = part(comm.rank, n, "float32"), np.full(n, 99, "float32")
        y[mine] = want[mine]
        if i % 3 == 0 and comm.rank % 2:
            comm.reduce_scatter(x, name, parts)
            works.append((comm.start_all_gather(y, name, parts), y, want))
            np.testing.assert_array_equal(x[mine], want[mine])
        else:
            works.append((comm.start_reduce_scatter(x, name, parts), x[mine], want[mine]))
            works.append((comm.start_all_gather(y, name, parts), y, want))
    for i in np.random.default_rng(comm.rank).permutation(len(works)):
        works[i][0].wait()
        np.testing.assert_array_equal(works[i][1], works[i][2])


def polling_moves_halves(comm: Comm) -> None:
    """Ranks poll two works in opposite orders, each only one until it is complete."""
    n, p = 900, comm.size
    x, y = part(comm.rank, n, "float32"), part(comm.rank, n, "float32")
    works = [comm.start_reduce_scatter(x), comm.start_all_gather(y)]
    for work in works if comm.rank % 2 else works[::-1]:
        while not work.poll():
            pass
    np.testing.assert_array_equal(x[comm.chunk(n)], total(p, n, "float32")[comm.chunk(n)])
    whole = np.concatenate([part(r, n, "float32")[a:b] for r, a, b in chunks(n, p)])
    np.testing.assert_array_equal(y, whole)


def chunks(n: int, p: int) -> Sequence[tuple[int, int, int]]:
    at = bounds(n, p)
    return [(r, at[r], at[r + 1]) for r in range(p)]


def halves_of_arrays_in_any_layout(comm: Comm) -> None:
    p = comm.size
    parts = (12 - (p - 1), *[1] * (p - 1))
    mine = own(comm, 12, parts)
    for view in (np.zeros((4, 3)).T, np.zeros((3, 8))[:, ::2]):
        values = np.arange(12.0).reshape(view.shape)
        view[...] = values + comm.rank
        comm.start_reduce_scatter(view, parts=parts).wait()
        want = (values * p + p * (p - 1) / 2).reshape(-1)
        np.testing.assert_array_equal(view.reshape(-1)[mine], want[mine])
        comm.start_all_gather(view, parts=parts).wait()
        np.testing.assert_array_equal(view.reshape(-1), want)


def halves_on_the_ledger(comm: Comm) -> None:
    """A ring moves all but one part in each half; float16 is summed in 4 bytes, gathered in 2."""
    p, r = comm.size, comm.rank
    for parts, (dtype, sums, final) in product(parts_of(p), (("float64", 8, 8), ("float16", 4, 2))):
        n = length(parts, p)
        at = bounds(n, p) if parts is None else (0, *np.cumsum(parts).tolist())
        m = [b - a for a, b in pairwise(at)]
        left, right, others = m[r - 1], m[(r + 1) % p], (p - 1) * m[r]
        expected = {  # elements sent and received by a reduce-scatter, and by an all-gather
            "ring": ((n - m[r], n - left), (n - right, n - m[r])),
            "p2p": ((n - m[r], others), (others, n - m[r])),
        }
        for name, halves in expected.items():
            for start, (sent, received), size in (
                (comm.start_reduce_scatter, halves[0], sums),
                (comm.start_all_gather, halves[1], final),
            ):
                comm.ledger.reset()
                start(np.ones(n, dtype), name, parts).wait()
                assert sum(comm.ledger.sent_bytes) == size * sent, (name, parts)
                assert sum(comm.ledger.received_bytes) == size * received, (name, parts)


def long_halves_are_cut(comm: Comm) -> None:
    """As messages above 1 GiB are, here above 40 bytes."""
    small = comm.split(0)
    small._transport.message_limit = 40
    p = comm.size
    parts = tuple(0 if r == 1 else 30 + r for r in range(p))
    n = sum(parts)
    want, mine = total(p, n, "float32"), own(comm, n, parts)
    x = part(comm.rank, n, "float32")
    small.start_reduce_scatter(x, parts=parts).wait()
    np.testing.assert_array_equal(x[mine], want[mine])
    small.start_all_gather(x, parts=parts).wait()
    np.testing.assert_array_equal(x, want)
