"""Laws of several operations under way, on one communicator and on several."""

import time
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
from helpers.comm.brought import part, rough, total
from helpers.comm.random_calls import RandomCalls
from helpers.sample import one_in

from nnmpi.comm import Comm
from nnmpi.comm.allreduce.dispatch import NAMES


def works_complete_in_any_order(comm: Comm) -> None:
    """Each rank waits for the same works in an order of its own."""
    p, n = comm.size, 501
    works = []
    for name in (*NAMES, *reversed(NAMES)):
        x = part(comm.rank, n, "float32")
        works.append((name, x, comm.start(x, name)))
    right = np.full(3, comm.rank)
    left = np.empty_like(right)
    received = comm.irecv(left, (comm.rank - 1) % p, tag=7)
    sent = comm.isend(right, (comm.rank + 1) % p, tag=7)
    order = np.random.default_rng(comm.rank).permutation(len(works))
    y = part(comm.rank, n, "float32")
    comm.all_reduce(y, "ring")  # one that blocks, in between
    for i in order:
        works[i][2].wait()
        assert works[i][2].done
    received.wait()
    sent.wait()
    comm.barrier()
    for name, x, work in [*works, ("ring", y, received)]:
        np.testing.assert_array_equal(x, total(p, n, "float32"), name)
        assert work.poll()
    np.testing.assert_array_equal(left, (comm.rank - 1) % p)


def polling_one_work_moves_all(comm: Comm) -> None:
    """Ranks poll two works in opposite orders, each only one until it is complete."""
    for name in NAMES:
        x, y = part(comm.rank, 900, "float32"), part(comm.rank, 900, "float32")
        works = [comm.start(x, name), comm.start(y, name)]
        for work in works if comm.rank % 2 else works[::-1]:
            while not work.poll():
                pass
        np.testing.assert_array_equal(x, total(comm.size, 900, "float32"), name)
        np.testing.assert_array_equal(y, x)


def polling_never_waits(comm: Comm) -> None:
    """Rank 0 polls before the others have started: they wait for its message."""
    go = np.zeros(1)
    for name in NAMES:
        comm.all_reduce(part(comm.rank, 10, "float32"), name)  # allocates shared memory
        x = part(comm.rank, 10, "float32")
        if comm.rank == 0:
            work = comm.start(x, name)
            assert work.poll() == (comm.size == 1)
            for sent in [comm.isend(go, r) for r in range(1, comm.size)]:
                sent.wait()
        else:
            comm.irecv(go, 0).wait()
            work = comm.start(x, name)
        work.wait()
        np.testing.assert_array_equal(x, total(comm.size, 10, "float32"), name)


def start_matches_all_reduce(comm: Comm) -> None:
    """Some ranks start a sum, of which others wait for the end, with other sums under way."""
    p = comm.size
    for name, n in product(NAMES, (7, 700)):  # messages of MPI that are short, and that are not
        for starts in ({0}, {p - 1}, set(range(0, p, 2))):
            x, y, z = (part(comm.rank, n, "float32") for _ in range(3))
            before = comm.start(y, "mpi")
            if comm.rank in starts:
                work = comm.start(x, name)
                after = comm.start(z, "mpi")
                while not work.poll():
                    pass
            else:
                comm.all_reduce(x, name)
                after = comm.start(z, "mpi")
            for work in (after, before):
                work.wait()
            for got in (x, y, z):
                np.testing.assert_array_equal(got, total(p, n, "float32"), name)


def ranks_have_different_works_under_way(comm: Comm) -> None:
    """Odd ranks wait for a work that even ranks have to move, from inside the next call."""
    p, n = comm.size, 3000
    buffer = comm.shared(4, "int64")
    buffer.mine[:] = comm.rank

    def parts_and_whole() -> None:
        part_of = comm.split(comm.rank % 2)
        assert part_of is not None
        comm.shared(3, "float64").free()

    def with_new_memory() -> None:
        comm.all_reduce(np.ones(1 << 12, "int16"), "shared")

    calls: list[Callable[[], None]] = [comm.barrier, buffer.all_reduce, parts_and_whole]
    calls += [with_new_memory, lambda: comm.broadcast(np.ones(5))]
    for call in [*calls, *(partial(comm.all_reduce, np.ones(9), name) for name in NAMES)]:
        x = part(comm.rank, n, "float32")
        work = comm.start(x, "tree")
        if comm.rank % 2:
            work.wait()
        call()
        work.wait()
        np.testing.assert_array_equal(x, total(p, n, "float32"))
    buffer.free()


def random_calls_in_any_order(comm: Comm) -> None:
    """All ranks draw the same calls; each waits and polls at random."""
    for seed in range(3):
        assert RandomCalls(comm, seed).run(100) == []


def split_in_groups(comm: Comm) -> None:
    odd = comm.split(comm.rank % 2)
    assert (odd.rank, odd.size) == (comm.rank // 2, len(range(comm.rank % 2, comm.size, 2)))
    for name in NAMES:
        x = np.array([comm.rank, 1.0])
        odd.all_reduce(x, name)
        assert x.tolist() == [sum(range(comm.rank % 2, comm.size, 2)), odd.size]
    first = comm.split(0 if comm.rank == 0 else None)
    assert (first is None) == (comm.rank > 0)
    if first is not None:
        assert (first.rank, first.size) == (0, 1)


def subsets_number_their_ranks(comm: Comm) -> None:
    """One of each number of ranks, the last ones; all others get none, and pass no ranks."""
    for n in range(comm.size + 1):
        members = range(comm.size)[comm.size - n :]
        found = comm.subset(members if comm.rank in members else ())
        assert (found is None) == (comm.rank not in members)
        if found is not None:
            assert (found.rank, found.size) == (members.index(comm.rank), n)
            found.free()


def barriers_hold(comm: Comm) -> None:
    """No rank leaves before the last one has come: each sees the marks of all."""
    seen = comm.shared(comm.size, "int64")
    for turn in range(1, 4):
        seen.mine[:] = 0
        seen.mine[comm.rank] = turn
        comm.barrier()
        seen.all_reduce()
        assert seen.total.tolist() == [turn] * comm.size
    work = comm.start(np.ones(5), "ring")
    comm.barrier()  # with a work under way
    work.wait()
    seen.free()


def short_sums_in_any_mixture(comm: Comm) -> None:
    """Ranks come late, begin sums or wait for them, and bring arrays in any layout; all lengths of
    a type that have the same shared memory, by turns, on two communicators."""
    own = np.random.default_rng(comm.rank)  # each rank decides by itself
    rng = np.random.default_rng(5)  # the same on all ranks
    other = comm.split(0)
    for k in one_in(4, range(400), "mixture"):
        n, dtype = int(rng.integers(1, 4097)), str(rng.choice(["float32", "float64", "int64"]))
        n = n if dtype == "float32" else n // 2 + 1
        parts = [rough(r + comm.size * k, n, dtype) for r in range(comm.size)]
        expected = parts[0].copy()
        for x in parts[1:]:
            expected += x
        whole = np.zeros((n, 2), dtype)
        x = whole[:, 0] if own.random() < 0.2 else np.zeros(n, dtype)
        x[...] = parts[comm.rank]
        there = (comm, other)[int(rng.integers(2))]
        if own.random() < 0.01:
            time.sleep(0.01)
        if own.random() < 0.2:
            there.start(x, "shared").wait()
        else:
            there.all_reduce(x, "shared")
        np.testing.assert_array_equal(x, expected, f"sum {k} of {n} {dtype}")
        assert not whole[:, 1].any()
    other.free()


def short_sums_wait_among_works(comm: Comm) -> None:
    """Where a work is under way, a short sum moves it; infinities and NaN go through."""
    x, y = part(comm.rank, 900, "float32"), np.full(3, np.inf, np.float32)
    y[1:] = np.nan, 1
    comm.all_reduce(x.copy(), "shared")
    comm.all_reduce(y.copy(), "shared")
    work = comm.start(x, "shared")
    comm.all_reduce(y, "shared")
    work.wait()
    np.testing.assert_array_equal(x, total(comm.size, 900, "float32"))
    assert np.isposinf(y[0])
    assert np.isnan(y[1])
    assert y[2] == comm.size


def short_sums_of_matrices_wait_for_late_ranks(comm: Comm) -> None:
    """The sum has the shape of the array, also on ranks that others keep waiting."""
    expected = np.full((2, 3), sum(range(comm.size)), np.float32)
    for late in range(comm.size):
        x = np.full((2, 3), comm.rank, np.float32)
        if comm.rank == late:
            time.sleep(0.05)
        comm.all_reduce(x, "shared")
        np.testing.assert_array_equal(x, expected)


def members_alone_make_a_group(comm: Comm) -> None:
    """Of neighbours, round the ring: each rank is in two groups, which no other rank calls. Works
    of all ranks that have begun before end later."""
    size, rank = comm.size, comm.rank
    x = np.full(9, rank + 1.0)
    pending = comm.start(x, "ring")
    groups = []
    for first in range(size):
        members = [first, (first + 1) % size]
        if rank in members and size > 1:
            groups.append((members, comm.group(members)))
    for members, group in groups:
        assert group.rank == members.index(rank)
        y = np.array([float(rank)])
        group.all_reduce(y, "ring")
        assert y[0] == sum(members)
    pending.wait()
    assert (x == size * (size + 1) / 2).all()
    again = comm.group([*range(size)][::-1])  # reversed, and twice the same ranks
    twice = comm.group([*range(size)][::-1])
    assert again.rank == twice.rank == size - 1 - rank
    assert again.name != twice.name
    z = np.array([float(rank)])
    twice.broadcast(z, 0)
    assert z[0] == size - 1
    comm.barrier()  # calls of all ranks are numbered alike still
    comm.all_reduce(z, "doubling")
    assert z[0] == size * (size - 1)
