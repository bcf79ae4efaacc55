"""What every communicator has to keep, whatever carries its messages: functions of a Comm.

Each runs on all ranks at once. `test_comm.py` runs them on threads, `test_comm_mpi.py` over MPI.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives import algorithms
from nnmpi.collectives.algorithms import ALGORITHMS, levels
from nnmpi.collectives.step import Algorithm, apart, cut
from nnmpi.comm import Comm
from nnmpi.comm.run import wide
from nnmpi.comm.ways import NAMES
from nnmpi.comm.work import Work

Array = NDArray[Any]
TYPES = ["float64", "float32", "float16", "int8", "int64", "uint16", "complex64", "bool"]


def lengths(p: int) -> list[int]:
    """Nothing, less than a chunk a rank, uneven chunks, and some more."""
    return sorted({0, 1, p - 1, p, p + 1, 3 * p + 2, 1000})


def part(rank: int, n: int, dtype: Any) -> Array:
    """What a rank brings: small whole numbers, whose sums are exact in every type."""
    return ((np.arange(n) + rank) % 5).astype(dtype)


def total(p: int, n: int, dtype: Any) -> Array:
    parts = [part(r, n, dtype) for r in range(p)]
    return np.logical_or.reduce(parts) if dtype == "bool" else np.add.reduce(parts, dtype=dtype)


def rough(rank: int, n: int, dtype: Any) -> Array:
    """What a rank brings: numbers of all sizes, whose sum depends on the order."""
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-2, 3, n)).astype(dtype)


def gathered(comm: Comm, array: Array) -> Array:
    """The bytes of everybody's array, one row a rank."""
    mine = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = np.zeros((comm.size, mine.size), np.uint8)
    rows[comm.rank] = mine
    comm.all_gather(rows)
    return rows


def by_hand(algorithm: Algorithm, parts: list[Array]) -> list[Array]:
    """What every rank ends with, by going through the plan in one process."""
    p, n, c = len(parts), parts[0].size, algorithm.chunks(len(parts))
    held = [x.copy() for x in parts]
    for step in algorithm.steps(np.arange(p), p):
        before = [x.copy() for x in held]
        for r, s in enumerate(apart(step, p)):
            if s.source >= 0:
                range_ = slice(*(cut(n, c, i) for i in s.recv))
                arrives = before[s.source][range_]
                held[r][range_] = held[r][range_] + arrives if s.reduce else arrives
    return held


def all_reduce_sums(comm: Comm) -> None:
    p = comm.size
    cases = [(dtype, 3 * p + 2) for dtype in TYPES] + [("float32", n) for n in lengths(p)]
    for name in (*NAMES, "auto"):
        for dtype, n in cases:
            x = part(comm.rank, n, dtype)
            assert comm.all_reduce(x, name) is None
            np.testing.assert_array_equal(x, total(p, n, dtype), f"{name} {dtype} {n}")


def all_reduce_has_the_bits_of_its_plan(comm: Comm) -> None:
    n, p = 157, comm.size
    for name in ALGORITHMS:
        for dtype in map(np.dtype, ("float32", "float64", "float16", "complex128")):
            want = by_hand(
                ALGORITHMS[name], [rough(r, n, dtype).astype(wide(dtype)) for r in range(p)]
            )
            for finish in (comm.all_reduce, lambda x, name: comm.start(x, name).wait()):
                x = rough(comm.rank, n, dtype)
                finish(x, name)
                assert x.tobytes() == want[comm.rank].astype(dtype).tobytes(), (name, dtype)


def all_reduce_gives_all_ranks_the_same_bits(comm: Comm) -> None:
    for name in NAMES:
        for dtype in ("float32", "float16"):
            x, again = rough(comm.rank, 1001, dtype), rough(comm.rank, 1001, dtype)
            comm.all_reduce(x, name)
            comm.all_reduce(again, name)
            assert x.tobytes() == again.tobytes()
            rows = gathered(comm, x)
            assert (rows == rows[0]).all(), (name, dtype)
            exact = np.sum([rough(r, 1001, dtype).astype("f8") for r in range(comm.size)], 0)
            scale = np.sum([abs(rough(r, 1001, dtype).astype("f8")) for r in range(comm.size)], 0)
            # half a unit in the last place of float32 for each addition, and rounding at the end
            bound = scale * comm.size * 2.0**-24 + abs(exact) * np.finfo(dtype).eps
            assert (abs(x.astype("f8") - exact) <= bound).all(), (name, dtype)


def half_precision_does_not_overflow_on_the_way(comm: Comm) -> None:
    """60000 - 60000 + ... leaves float16's range unless it is summed in float32."""
    for name in NAMES:
        x = np.full(40, 60000 if comm.rank % 2 == 0 else -60000, "float16")
        comm.all_reduce(x, name)
        np.testing.assert_array_equal(x, 60000 * (comm.size % 2), name)


def other_collectives(comm: Comm) -> None:
    p = comm.size
    for dtype in ("float32", "float16", "int64", "complex128"):
        for n in lengths(p):
            want, own = total(p, n, dtype), comm.chunk(n)
            for name in algorithms.REDUCE_SCATTERS:
                x = part(comm.rank, n, dtype)
                y = comm.reduce_scatter(x, name)
                np.testing.assert_array_equal(y, want[own], name)
                assert n == 0 or y.size == 0 or np.shares_memory(x, y)
            for name in algorithms.ALL_GATHERS:
                x = np.full(n, 99, dtype)
                x[own] = want[own]
                comm.all_gather(x, name)
                np.testing.assert_array_equal(x, want, name)
            for root in range(p):
                for name in algorithms.REDUCES:
                    x = part(comm.rank, n, dtype)
                    comm.reduce(x, root, name)
                    kept = want if comm.rank == root else part(comm.rank, n, dtype)
                    np.testing.assert_array_equal(x, kept, name)
                for name in algorithms.BROADCASTS:
                    x = part(comm.rank, n, dtype)
                    comm.broadcast(x, root, name)
                    np.testing.assert_array_equal(x, part(root, n, dtype), name)


def moving_changes_no_bits(comm: Comm) -> None:
    """Broadcast and all-gather leave NaNs, signed zeros and half precision as they are."""
    bits = np.arange(1 << 16).astype(np.uint16)
    x = bits.copy() if comm.rank == 0 else np.zeros_like(bits)
    halves = x.view(np.float16)
    comm.broadcast(halves)
    assert x.tobytes() == bits.tobytes()
    x[:] = 0
    x[comm.chunk(x.size)] = bits[comm.chunk(x.size)]
    comm.all_gather(halves)
    assert x.tobytes() == bits.tobytes()


def messages_and_bytes(comm: Comm) -> None:
    """The ledger of a power of two of ranks, against the formulas; M bytes a buffer."""
    p, r, k = comm.size, comm.rank, levels(comm.size)
    if p & (p - 1):
        return
    n = 24 * p
    M = 4 * n
    up = k if r == 0 else (r & -r).bit_length() - 1  # how many leaves hang from this rank
    parent = int(r > 0)
    formulas = {  # messages, bytes sent
        "ring": (2 * (p - 1), 2 * (p - 1) * M // p),
        "p2p": (2 * (p - 1), 2 * (p - 1) * M // p),
        "tree": (up + parent, (up + parent) * M),
        "ps": (p - 1, (p - 1) * M) if r == 0 else (1, M),
        "doubling": (k, k * M),
        "halving": (2 * k, 2 * (p - 1) * M // p),
    }
    for name, (messages, nbytes) in formulas.items():
        comm.ledger.reset()
        comm.all_reduce(np.ones(n, "float32"), name)
        assert sum(comm.ledger.sent_messages) == messages, name
        assert sum(comm.ledger.sent_bytes) == nbytes, name
        assert sum(comm.ledger.received_messages) == messages, name
        assert sum(comm.ledger.received_bytes) == nbytes, name


def messages_and_bytes_by_peer(comm: Comm) -> None:
    """The ledger of any number of ranks, against the plan; partial sums of float16 take 4 bytes."""
    p, r, n = comm.size, comm.rank, 37
    for dtype, sums, final in (("float64", 8, 8), ("float16", 4, 2)):
        for name, algorithm in ALGORITHMS.items():
            sent, received = np.zeros((2, p), int), np.zeros((2, p), int)
            for s in algorithm.steps(r, p):
                for peer, range_, row in ((s.to, s.send, sent), (s.source, s.recv, received)):
                    lo, hi = (cut(n, algorithm.chunks(p), int(i)) for i in range_)
                    if peer >= 0 and hi > lo:
                        row[:, peer] += 1, (hi - lo) * (sums if s.reduce else final)
            for way in (comm.all_reduce, lambda x, name: comm.start(x, name).wait()):
                comm.ledger.reset()
                way(np.ones(n, dtype), name)
                ledger = comm.ledger
                assert [ledger.sent_messages, ledger.sent_bytes] == sent.tolist(), name
                assert [ledger.received_messages, ledger.received_bytes] == received.tolist(), name


def shared_memory_sends_nothing(comm: Comm) -> None:
    comm.ledger.reset()
    comm.all_reduce(np.ones(100), "shared")
    buffer = comm.shared(100, "float32")
    buffer.mine[:] = 1
    buffer.all_reduce()
    assert sum(comm.ledger.sent_messages) == sum(comm.ledger.received_messages) == 0
    buffer.free()


def works_complete_in_any_order(comm: Comm) -> None:
    """Ranks wait for the same works in different orders, while others of theirs are under way."""
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


def polling_completes(comm: Comm) -> None:
    x = part(comm.rank, 1000, "float32")
    for name in NAMES:
        y = x.copy()
        work = comm.start(y, name)
        while not work.poll():
            pass
        np.testing.assert_array_equal(y, total(comm.size, 1000, "float32"), name)


def polling_never_waits(comm: Comm) -> None:
    """Rank 0 polls before the others have started, which start only when it says so."""
    go = np.zeros(1)
    for name in NAMES:
        comm.all_reduce(part(comm.rank, 10, "float32"), name)  # makes shared memory
        x = part(comm.rank, 10, "float32")
        if comm.rank == 0:
            work = comm.start(x, name)
            assert work.poll() == (comm.size == 1)
            for told in [comm.isend(go, r) for r in range(1, comm.size)]:
                told.wait()
        else:
            comm.irecv(go, 0).wait()
            work = comm.start(x, name)
        work.wait()
        np.testing.assert_array_equal(x, total(comm.size, 10, "float32"), name)


def two_communicators_at_once(comm: Comm) -> None:
    """Waiting on one pushes the other too: ranks wait for them in opposite orders."""
    other = comm.split(0, -comm.rank)
    assert other is not None
    assert other.rank == comm.size - 1 - comm.rank
    x, y = part(comm.rank, 4000, "float64"), part(other.rank, 4000, "float64")
    for name in ("ring", "shared", "tree"):
        a, b = x.copy(), y.copy()
        works = [comm.start(a, name), other.start(b, name)]
        for work in works if comm.rank % 2 else works[::-1]:
            work.wait()
        np.testing.assert_array_equal(a, total(comm.size, 4000, "float64"))
        np.testing.assert_array_equal(b, total(comm.size, 4000, "float64"))


def some_ranks_have_more_under_way_than_others(comm: Comm) -> None:
    """Odd ranks wait for a work at once, which takes the even ones: they are in the next call."""
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


def anything_in_any_order(comm: Comm) -> None:
    """Calls drawn alike on all ranks; each waits for and polls what it likes, when it likes."""
    for seed in range(3):
        Storm(comm, seed).blow(150)


class Storm:
    """Random calls on communicators whose ranks are numbered in different ways."""

    def __init__(self, comm: Comm, seed: int) -> None:
        back, same = comm.split(0, -comm.rank), comm.split(0)
        assert back is not None
        assert same is not None
        self.comms = [comm, back, same]
        self.alike = np.random.default_rng(seed)
        self.own = np.random.default_rng((seed, comm.rank))
        self.works: list[tuple[Work, Array, Array]] = []

    def blow(self, calls: int) -> None:
        for _ in range(calls):
            comm = self.comms[self.alike.integers(3)]
            n, dtype = self.alike.choice([0, 1, 7, 500]), self.alike.choice(["f4", "f2", "i8"])
            name, p = self.alike.choice(NAMES), comm.size
            x, want = part(comm.rank, n, dtype), total(p, n, dtype)
            kind = self.alike.choice(["start", "start", "all_reduce", "message", "other"])
            if kind == "start":
                self.works.append((comm.start(x, name), x, want))
            elif kind == "all_reduce":
                comm.all_reduce(x, name)
                np.testing.assert_array_equal(x, want, name)
            elif kind == "message":
                self.message(comm, int(self.alike.integers(p)), x)
            else:
                comm.barrier()
                comm.broadcast(x, int(self.alike.integers(p)))
            self.tend()
        while self.works:
            self.finish(0)

    def message(self, comm: Comm, step: int, x: Array) -> None:
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        got = np.empty_like(x)
        self.works.append((comm.irecv(got, source), got, part(source, x.size, x.dtype)))
        self.works.append((comm.isend(x, to), x, x.copy()))

    def tend(self) -> None:
        while self.works and (len(self.works) > 8 or self.own.random() < 0.3):
            self.finish(int(self.own.integers(len(self.works))))
        if self.works and self.own.random() < 0.3:
            self.works[self.own.integers(len(self.works))][0].poll()

    def finish(self, i: int) -> None:
        work, x, want = self.works.pop(i)
        work.wait()
        np.testing.assert_array_equal(x, want)


def split_in_groups(comm: Comm) -> None:
    odd = comm.split(comm.rank % 2)
    assert odd is not None
    assert (odd.rank, odd.size) == (comm.rank // 2, len(range(comm.rank % 2, comm.size, 2)))
    for name in NAMES:
        x = np.array([comm.rank, 1.0])
        odd.all_reduce(x, name)
        assert x.tolist() == [sum(range(comm.rank % 2, comm.size, 2)), odd.size]
    first = comm.split(0 if comm.rank == 0 else None)
    assert (first is None) == (comm.rank > 0)
    if first is not None:
        assert (first.rank, first.size) == (0, 1)


def buffers_in_shared_memory(comm: Comm) -> None:
    for dtype in ("float32", "float16", "int64"):
        for n in (0, 1, comm.size + 1, 50_000):
            buffer = comm.shared(n, dtype)
            assert buffer.mine.shape == buffer.total.shape == (n,)
            assert buffer.mine.dtype == dtype
            for turn in range(3):
                buffer.mine[:] = part(comm.rank + turn, n, dtype)
                if turn == 1:
                    buffer.start().wait()
                else:
                    buffer.all_reduce()
                want = np.add.reduce(
                    [part(r + turn, n, dtype) for r in range(comm.size)], dtype=dtype
                )
                np.testing.assert_array_equal(buffer.total, want)
                np.testing.assert_array_equal(buffer.mine, part(comm.rank + turn, n, dtype))
            buffer.free()


def arrays_in_any_layout(comm: Comm) -> None:
    p = comm.size
    for name in NAMES:
        whole = np.arange(60.0).reshape(3, 4, 5) + comm.rank
        for view in (whole.T, whole[:, 1:3, ::2], whole[..., 0], whole[1, 1, 1:2].reshape(())):
            before, x = whole.copy(), view.copy()
            comm.all_reduce(view, name)
            np.testing.assert_array_equal(view, x * p + p * (p - 1) / 2 - p * comm.rank)
            view[...] = x
            np.testing.assert_array_equal(whole, before)  # nothing beside the view was touched


def long_messages_are_cut(comm: Comm) -> None:
    """As messages above 1 GiB are, here above 40 bytes."""
    small = comm.split(0)
    assert small is not None
    small._wire.piece = small._talk.piece = 40
    for name in (*ALGORITHMS, "mpi"):
        for dtype in ("float64", "float16", "complex128"):
            x, y = part(comm.rank, 123, dtype), part(comm.rank, 123, dtype)
            small.all_reduce(x, name)
            small.start(y, name).wait()
            np.testing.assert_array_equal(y, x)
            np.testing.assert_array_equal(x, total(comm.size, 123, dtype), f"{name} {dtype}")
    if comm.size == 2:
        small.ledger.reset()
        small.all_reduce(np.ones(20), "ring")  # 80 bytes each way, twice
        assert sum(small.ledger.sent_messages) == 4
        assert max(small.ledger.sent_bytes) == 160
    data, got = np.arange(99.0), np.empty(99)
    peers = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    works = [small.irecv(got, peers[1]), small.isend(data, peers[0])]
    for work in works:
        work.wait()
    np.testing.assert_array_equal(got, data)


def a_plan_of_ones_own(comm: Comm) -> None:
    x = part(comm.rank, 77, "float32")
    comm.carry_out(ALGORITHMS["ring"], x)
    np.testing.assert_array_equal(x, total(comm.size, 77, "float32"))


def barriers_hold(comm: Comm) -> None:
    """No rank leaves before the last one has come: each sees everybody's mark."""
    seen = comm.shared(comm.size, "int64")
    for turn in range(1, 4):
        seen.mine[:] = 0
        seen.mine[comm.rank] = turn
        comm.barrier()
        seen.all_reduce()
        assert seen.total.tolist() == [turn] * comm.size
    work = comm.start(np.ones(5), "ring")
    comm.barrier()  # while something is under way
    work.wait()
    seen.free()


LAWS: list[Callable[[Comm], None]] = [
    all_reduce_sums,
    all_reduce_has_the_bits_of_its_plan,
    all_reduce_gives_all_ranks_the_same_bits,
    half_precision_does_not_overflow_on_the_way,
    other_collectives,
    moving_changes_no_bits,
    messages_and_bytes,
    messages_and_bytes_by_peer,
    shared_memory_sends_nothing,
    works_complete_in_any_order,
    polling_completes,
    polling_never_waits,
    two_communicators_at_once,
    some_ranks_have_more_under_way_than_others,
    anything_in_any_order,
    split_in_groups,
    buffers_in_shared_memory,
    arrays_in_any_layout,
    long_messages_are_cut,
    a_plan_of_ones_own,
    barriers_hold,
]
