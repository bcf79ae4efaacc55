"""Laws of single collectives: their sums, their bits, their bytes, their arrays."""

import numpy as np
from helpers.comm.brought import Array, by_hand, gathered, lengths, part, rough, total
from helpers.sample import one_in

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import chunk_start, in_rounds
from nnmpi.comm import Comm
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.arguments import accumulator

TYPES = ["float64", "float32", "float16", "int8", "int64", "uint16", "complex64", "bool"]


def all_reduce_sums(comm: Comm) -> None:
    p = comm.size
    cases = [(dtype, 3 * p + 2) for dtype in TYPES] + [("float32", n) for n in lengths(p)]
    for name in (*NAMES, "auto"):
        for dtype, n in one_in(2, cases, name):
            x = part(comm.rank, n, dtype)
            assert comm.all_reduce(x, name) is None
            np.testing.assert_array_equal(x, total(p, n, dtype), f"{name} {dtype} {n}")


def short_integers_wrap(comm: Comm) -> None:
    """Their sums overflow as NumPy's do, where MPI libraries may saturate."""
    for dtype, value in (("int8", 100), ("uint8", 200), ("int16", -30000), ("uint16", 60000)):
        want = np.add.reduce([np.full(40, value + r, dtype) for r in range(comm.size)], dtype=dtype)
        for name in NAMES:
            x = np.full(40, value + comm.rank, dtype)
            comm.all_reduce(x, name)
            np.testing.assert_array_equal(x, want, f"{name} {dtype}")
            x = np.full(40, value + comm.rank, dtype)
            comm.start(x, name).wait()
            np.testing.assert_array_equal(x, want, f"{name} {dtype}")


def all_reduce_has_the_bits_of_its_algorithm(comm: Comm) -> None:
    n, p = 157, comm.size
    for name in ALGORITHMS:
        for dtype in map(np.dtype, ("float32", "float64", "float16", "complex128")):
            want = by_hand(
                ALGORITHMS[name], [rough(r, n, dtype).astype(accumulator(dtype)) for r in range(p)]
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


def partial_sums_of_half_precision_do_not_overflow(comm: Comm) -> None:
    """60000 - 60000 + ... leaves float16's range unless it is summed in float32."""
    for name in NAMES:
        x = np.full(40, 60000 if comm.rank % 2 == 0 else -60000, "float16")
        comm.all_reduce(x, name)
        np.testing.assert_array_equal(x, 60000 * (comm.size % 2), name)


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


def messages_and_bytes_by_peer(comm: Comm) -> None:
    """The ledger of any number of ranks, against the steps; float16 is summed in 4 bytes."""
    p, r, n = comm.size, comm.rank, 37
    for dtype, sums, final in (("float64", 8, 8), ("float16", 4, 2)):
        for name, algorithm in ALGORITHMS.items():
            sent, received = np.zeros((2, p), int), np.zeros((2, p), int)
            chunks = algorithm.chunks(p)
            for s in algorithm.steps(r, p):
                for peer, messages, row in (
                    (s.to, s.sends(chunks), sent),
                    (s.source, s.receives(chunks), received),
                ):
                    for message in messages:
                        ends = [[chunk_start(n, chunks, i) for i in piece] for piece in message]
                        size = sum(hi - lo for lo, hi in ends)
                        if size:
                            row[:, peer] += 1, size * (sums if s.reduce else final)
            for finish in (comm.all_reduce, lambda x, name: comm.start(x, name).wait()):
                comm.ledger.reset()
                finish(np.ones(n, dtype), name)
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
            np.testing.assert_array_equal(whole, before)  # elements outside the view are unchanged


def unaligned_arrays(comm: Comm) -> None:
    """As np.frombuffer makes them from bytes that follow a header."""
    p, n = comm.size, 37

    def unaligned(values: Array) -> Array:
        array = np.frombuffer(bytearray(values.nbytes + 1), values.dtype, values.size, offset=1)
        array[...] = values
        assert not array.flags.aligned
        return array

    for dtype in ("float32", "float16", "int64"):
        want = total(p, n, dtype)
        for name in NAMES:
            x, y = (unaligned(part(comm.rank, n, dtype)) for _ in range(2))
            comm.all_reduce(x, name)
            comm.start(y, name).wait()
            np.testing.assert_array_equal(x, want, name)
            np.testing.assert_array_equal(y, want, name)
        x = unaligned(part(comm.rank, n, dtype))
        own = comm.reduce_scatter(x)
        assert np.shares_memory(own, x)
        np.testing.assert_array_equal(own, want[comm.chunk(n)])
        comm.all_gather(x)
        np.testing.assert_array_equal(x, want)
        x = unaligned(part(comm.rank, n, dtype))
        comm.broadcast(x, p - 1)
        np.testing.assert_array_equal(x, part(p - 1, n, dtype))
        x = unaligned(part(comm.rank, n, dtype))
        comm.reduce(x, p - 1)
        np.testing.assert_array_equal(x, want if comm.rank == p - 1 else part(comm.rank, n, dtype))
        got = unaligned(np.zeros(n, dtype))
        received = comm.irecv(got, (comm.rank - 1) % p)
        comm.isend(unaligned(part(comm.rank, n, dtype)), (comm.rank + 1) % p).wait()
        received.wait()
        np.testing.assert_array_equal(got, part((comm.rank - 1) % p, n, dtype))


def long_messages_are_cut(comm: Comm) -> None:
    """As messages above 1 GiB are, here above 40 bytes."""
    small = comm.split(0)
    small._transport.message_limit = small._p2p.message_limit = 40
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


def messages_of_all_ports_are_in_flight_at_once(comm: Comm) -> None:
    """A round waits once, for one message each way on each port that this rank uses in it."""
    p, r = comm.size, comm.rank
    interpreter = Interpreter(comm._transport.duplicate())
    for name, algorithm in ALGORITHMS.items():
        rounds = [
            sum(int(peer >= 0) for s in steps for peer in (s.to, s.source))
            for steps in in_rounds(algorithm.steps(r, p))
        ]
        n, waits = 16 * p * algorithm.chunks(p), []
        row = part(r, n, "float32")
        for requests in interpreter.steps(algorithm, row, tag=0):
            waits.append(len(requests))
            comm._transport.wait(requests)
        np.testing.assert_array_equal(row, total(p, n, "float32"))
        if name not in ("bruck", "pat"):  # whose ranges may be two messages
            assert waits == [messages for messages in rounds if messages], name
        if p == 4:
            most = {"bucket": 4, "multiplying": 6, "swing": 4, "dual-root": 2, "ring": 2}
            assert max(waits) == most.get(name, max(waits)), name
    interpreter.free()
