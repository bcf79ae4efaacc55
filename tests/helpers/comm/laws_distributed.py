"""Laws of nnmpi.distributed: collectives give what NumPy computes from all ranks' arrays, and
replicas train as one rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import nnmpi
import nnmpi.distributed as dist
from nnmpi import Tensor, nn, optim
from nnmpi.comm import Comm
from nnmpi.distributed.replicas import ReplicaError
from nnmpi.nn.parallel import DistributedDataParallel
from nnmpi.utils.checkpoint import checkpoint
from nnmpi.utils.data import DataLoader, TensorDataset
from nnmpi.utils.data.distributed import DistributedSampler

N = 7
DTYPES = "float32", "float64", "int64"


@contextmanager
def _joined(comm: Comm) -> Iterator[None]:
    dist.init_process_group("gloo", comm=comm)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _row(rank: int, n: int, dtype: str = "float64") -> np.ndarray:
    """Small whole numbers, whose sums and products are exact in any order."""
    return np.random.default_rng(rank).integers(1, 4, n).astype(dtype)


def reductions_are_those_of_numpy(comm: Comm) -> None:
    with _joined(comm):
        for op in dist.ReduceOp:
            whole = op.name.startswith("B")
            for dtype in ("int64",) if whole else DTYPES:
                if op is dist.ReduceOp.AVG and dtype == "int64":
                    continue
                rows = np.array([_row(r, N * comm.size, dtype) for r in range(comm.size)])
                f = getattr(np, op.value)
                want = f(rows, axis=0) if op.name == "AVG" else f.reduce(rows)
                for reduced in (_all_reduced, _async_reduced, _scattered_and_gathered):
                    assert reduced(rows[comm.rank], op).tolist() == want.tolist(), (op, dtype)
                root, x = comm.size - 1, rows[comm.rank].copy()
                dist.reduce(x, root, op)
                assert x.tolist() == (want if comm.rank == root else rows[comm.rank]).tolist()


def _all_reduced(x: np.ndarray, op: dist.ReduceOp) -> np.ndarray:
    t = nnmpi.tensor(x)
    assert dist.all_reduce(t, op) is None
    return t.numpy()


def _async_reduced(x: np.ndarray, op: dist.ReduceOp) -> np.ndarray:
    apart = np.zeros((x.size, 2), x.dtype)
    apart[:, 1] = x  # not contiguous
    work = dist.all_reduce(apart[:, 1], op, async_op=True)
    while not work.is_completed():
        pass
    assert work.wait()
    assert not apart[:, 0].any()
    return apart[:, 1]


def _scattered_and_gathered(x: np.ndarray, op: dist.ReduceOp) -> np.ndarray:
    size, before = dist.get_world_size(), x.copy()
    part, whole = nnmpi.zeros(x.size // size).numpy().astype(x.dtype), np.zeros_like(x)
    dist.reduce_scatter_tensor(part, x, op)
    again = np.zeros_like(part)
    dist.reduce_scatter(again, [*x.reshape(size, -1)], op)
    assert again.tolist() == part.tolist()
    assert (x == before).all()
    dist.all_gather_into_tensor(whole, part)
    parts = [np.zeros_like(part) for _ in range(size)]
    dist.all_gather(parts, part)
    assert np.concatenate(parts).tolist() == whole.tolist()
    return whole


def means_of_integers_are_refused(comm: Comm) -> None:
    """Before anything is sent, so that the array is as before after other calls."""
    x = np.arange(3) + comm.rank
    with _joined(comm):
        with pytest.raises(TypeError, match="AVG of int64: sum them"):
            dist.all_reduce(x, dist.ReduceOp.AVG)
        dist.barrier()
        dist.all_reduce(np.ones(3))
    assert x.tolist() == [comm.rank, comm.rank + 1, comm.rank + 2]


def other_types_are_refused(comm: Comm) -> None:
    """Types of inputs and outputs are compared, since messages move bytes."""
    size, x = comm.size, np.ones(comm.size)
    many, one = np.zeros(size * size, "int64"), np.zeros(1, "int64")
    rows = [np.zeros(size, "int64")] * size
    with _joined(comm):
        for call in (
            lambda: dist.all_gather_into_tensor(many, x),
            lambda: dist.all_gather(rows, x),
            lambda: dist.reduce_scatter_tensor(one, x),
            lambda: dist.reduce_scatter(one, [*x.reshape(size, 1)]),
            lambda: dist.all_to_all_single(rows[0], x),
            lambda: dist.all_to_all([one] * size, [*x.reshape(size, 1)]),
            lambda: dist.gather(x, rows, comm.rank),
            lambda: dist.scatter(rows[0], [x] * size, comm.rank),
        ):
            with pytest.raises(TypeError, match=r"is of (int64|float64), and (int64|float64)"):
                call()
        with pytest.raises(ValueError, match="input_list has 2 elements, and 1 are needed"):
            dist.reduce_scatter(np.zeros(1), [np.zeros(2)] * size)
        with pytest.raises(ValueError, match="input_list has 0 entries"):
            dist.reduce_scatter(np.zeros(1), [])


def groups_may_be_called_in_any_order(comm: Comm) -> None:
    """Of two groups the sums that start first are others on each rank, and an asynchronous barrier
    does not wait."""
    with _joined(comm):
        pair = [dist.new_group() for _ in range(2)]
        arrays = np.ones(3), np.full(1 << 14, 100.0)
        barrier = dist.barrier(pair[0], async_op=True) if comm.rank % 2 else None
        order = [0, 1] if comm.rank % 2 else [1, 0]
        works = [dist.all_reduce(arrays[i], group=pair[i], async_op=True) for i in order[:1]]
        barrier = barrier or dist.barrier(pair[0], async_op=True)
        works += [dist.all_reduce(arrays[i], group=pair[i], async_op=True) for i in order[1:]]
        for work in (barrier, *works):
            assert work.wait()
    assert [array[0] for array in arrays] == [comm.size, 100 * comm.size]


def an_error_afterwards_stays(comm: Comm) -> None:
    """What follows an operation and fails, fails again for another wait."""
    with _joined(comm):
        work = dist.all_reduce(np.ones(2, "float32"), dist.ReduceOp.BAND, async_op=True)
        assert work is not None
        for _ in range(2 if comm.size > 1 else 0):  # one rank has nothing to combine
            with pytest.raises(TypeError, match="bitwise_and"):
                work.wait()


def arrays_move_between_ranks(comm: Comm) -> None:
    rank, size = comm.rank, comm.size
    rows = [_row(r, N) for r in range(size)]
    with _joined(comm):
        for root in range(size):
            x = rows[rank].copy()
            dist.broadcast(x, root)
            assert x.tolist() == rows[root].tolist()
            got = [np.zeros(N) for _ in rows] if rank == root else None
            dist.gather(rows[rank], got, root)
            assert got is None or np.array_equal(got, rows)
            y = nnmpi.zeros(N, dtype=np.float64)
            dist.scatter(y, rows if rank == root else None, root)
            assert y.numpy().tolist() == rows[rank].tolist()
        sent = np.arange(size * 2) + 100 * rank
        got = np.zeros_like(sent)
        dist.all_to_all_single(got, sent)
        assert got.reshape(size, 2)[:, 0].tolist() == [100 * r + 2 * rank for r in range(size)]
        # rank r sends r + 1 rows to each rank
        cuts, apart = [r + 1 for r in range(size)], np.full((size * (rank + 1), 3), rank)
        out = np.zeros((sum(cuts), 3), apart.dtype)
        dist.all_to_all_single(out, apart, cuts, [rank + 1] * size)
        assert out[:, 2].tolist() == np.repeat(range(size), cuts).tolist()
        right, left, z = (rank + 1) % size, (rank - 1) % size, np.zeros(N)
        if size > 1:
            work = dist.isend(rows[rank], right, tag=3)
            assert dist.recv(z, left, tag=3) == left
            assert work.wait()
            assert z.tolist() == rows[left].tolist()
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
        assert [o["text"] for o in objects] == ["x" * r for r in range(size)]
        texts = [f"of {rank}", rank] if rank == size - 1 else [print, lambda: None]  # not pickled
        dist.broadcast_object_list(texts, size - 1)
        assert texts == [f"of {size - 1}", size - 1]


def groups_have_collectives_of_their_own(comm: Comm) -> None:
    with _joined(comm):
        assert (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.size)
        last = [*range(comm.size)][-2:]
        group = dist.new_group(last)
        assert dist.get_process_group_ranks(group) == last
        x = np.array([float(comm.rank)])
        if comm.rank in last:
            assert dist.get_rank(group) == last.index(comm.rank)
            dist.all_reduce(x, group=group)
            assert x[0] == sum(last)
            dist.broadcast(x, last[-1], group=group)
            with pytest.raises(ValueError, match=f"rank {comm.size} is not in the group"):
                dist.broadcast(x, comm.size, group=group)
        else:
            assert dist.get_rank(group) == -1
            with pytest.raises(ValueError, match="let only members of a group call it"):
                dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        dist.barrier()
    with pytest.raises(ValueError, match=r"call nnmpi\.distributed\.init_process_group"):
        dist.get_rank()


# ---- replicas


class _Net(nn.Module):
    """Two layers, one of them run again in the backward pass, and one that some samples use."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor, with_c: bool = False) -> dict[str, Tensor]:
        y = self.b(checkpoint(lambda t: self.a(t).tanh(), x))
        return {"y": y + self.c(x) if with_c else y, "hidden": self.a(x)}


def _samples(comm: Comm) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((4 * comm.size, 5)), rng.integers(0, 3, 4 * comm.size)


def _model(kind: Any = _Net) -> Any:
    with nnmpi.seeded(3):
        return kind().to(dtype=np.float64)


def _loss(model: Any, x: np.ndarray, y: np.ndarray, with_c: bool) -> Tensor:
    """A sum over samples, and a term of the parameters that was computed before the output."""
    inner = getattr(model, "module", model)
    penalty = (inner.a.weight * inner.a.weight).sum() * 1e-2
    out = model(nnmpi.tensor(x), with_c)
    twice = model(nnmpi.tensor(x * 0.5), with_c)["hidden"].mean()
    return nn.functional.cross_entropy(out["y"], y) + penalty + twice


def replicas_train_as_one_rank(comm: Comm) -> None:
    """Gradients are means over ranks: of terms of parameters, of layers that only some ranks use,
    of parts that run again, of two outputs and two calls; one that no rank has is None."""
    x, y = _samples(comm)
    mine = slice(comm.rank, None, comm.size)
    parts = [slice(r, None, comm.size) for r in range(comm.size)]
    one = _model()
    with _joined(comm):
        if comm.rank:  # the first rank's values count
            with nnmpi.seeded(4):
                replica = _Net().to(dtype=np.float64)
        else:
            replica = _model()
        model = DistributedDataParallel(replica, bucket_cap_mb=1e-4)
        opts = [optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1) for m in (one, model)]
        for step in range(3):
            for opt in opts:
                opt.zero_grad()
            for r, part in enumerate(parts):
                (_loss(one, x[part], y[part], r == step % comm.size) * (1 / comm.size)).backward()
            _loss(model, x[mine], y[mine], comm.rank == step % comm.size).backward()
            assert model.module.unused.weight.grad is None
            for p, q in zip(model.parameters(), one.parameters(), strict=True):
                if q.grad is not None:
                    np.testing.assert_allclose(p.grad, q.grad, rtol=1e-10, atol=1e-13)
            for opt in opts:
                opt.step()
        assert "equal on all, bit by bit" in nnmpi.verify()


def gradients_accumulate_without_sums(comm: Comm) -> None:
    x, y = _samples(comm)
    with _joined(comm):
        model, opposite = DistributedDataParallel(_model()), DistributedDataParallel(_model())
        mine = slice(comm.rank, None, comm.size)
        own = _model()
        _loss(own, x[mine], y[mine], True).backward()
        sent = sum(comm.ledger.sent_messages)
        with model.no_sync():
            _loss(model, x[mine], y[mine], True).backward()
        assert sum(comm.ledger.sent_messages) == sent
        assert np.array_equal(model.module.b.weight.grad, own.b.weight.grad)
        # two models in one graph, which is visited twice
        loss = _loss(model, x[mine], y[mine], True) + _loss(opposite, x[mine], y[mine], True)
        loss.backward(retain_graph=True)
        loss.backward()
        one = _model()
        for part in (slice(r, None, comm.size) for r in range(comm.size)):
            (_loss(one, x[part], y[part], True) * (1 / comm.size)).backward()
        for p, q, g in zip(*(m.parameters() for m in (model, opposite, one)), strict=True):
            if g.grad is not None:
                np.testing.assert_allclose(p.grad, 3 * g.grad, rtol=1e-10, atol=1e-13)
                np.testing.assert_allclose(q.grad, 2 * g.grad, rtol=1e-10, atol=1e-13)


def buffers_are_those_of_the_first_rank(comm: Comm) -> None:
    with _joined(comm):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        for step in range(2):
            x = np.random.default_rng((comm.rank, step)).standard_normal((6, 4)).astype("f4")
            model(nnmpi.tensor(x)).sum().backward()
        if comm.size > 1:
            with pytest.raises(ReplicaError, match=r"running_mean of rank 1 differs .* by up to"):
                nnmpi.verify()
        model(nnmpi.tensor(np.ones((2, 4), "f4")))  # the same on all ranks, from equal buffers
        assert "7 parameters and buffers" in nnmpi.verify()


def ranks_accumulate_any_number_of_passes(comm: Comm) -> None:
    """Under `no_sync`, also with buffers: only passes after a sum take those of the first rank."""
    with _joined(comm):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        x = nnmpi.tensor(np.random.default_rng(comm.rank).standard_normal((6, 4)).astype("f4"))
        for _ in range(2):
            with model.no_sync():
                for _ in range(comm.rank + 1):
                    model(x).sum().backward()
            model(x).sum().backward()
        model(nnmpi.tensor(np.ones((2, 4), "f4")))
        assert "7 parameters and buffers" in nnmpi.verify()


def a_replica_that_differs_is_named(comm: Comm) -> None:
    with _joined(comm):
        with pytest.raises(ValueError, match="no DistributedDataParallel model"):
            nnmpi.verify()
        model = DistributedDataParallel(nn.Linear(3, 2))
        assert "2 parameters and buffers are equal" in nnmpi.verify()
        if comm.rank == comm.size - 1 > 0:
            model.module.bias.data[1] += 0.25
        if comm.size > 1:
            match = rf"bias of rank {comm.size - 1} differs .* by up to 0.25 \(and 1 of 2"
            with pytest.raises(ReplicaError, match=match):
                nnmpi.verify()


def samplers_share_out_all_samples(comm: Comm) -> None:
    n = 4 * comm.size + 1
    data = TensorDataset(np.arange(n))
    with _joined(comm):
        for drop_last in (False, True):
            sampler = DistributedSampler(data, seed=1, drop_last=drop_last)
            loader = DataLoader(data, batch_size=3, sampler=sampler)
            epochs = []
            for epoch in range(2):
                sampler.set_epoch(epoch)
                rows = [i for (batch,) in loader for i in batch.numpy().tolist()]
                share = n // comm.size if drop_last else -(-n // comm.size)
                assert len(rows) == len(sampler) == share
                assert len(loader) == 2
                every: list[Any] = [None] * comm.size
                dist.all_gather_object(every, rows)
                found = [i for part in every for i in part]
                assert len({*found}) == min(n, share * comm.size)
                epochs.append(found)
            assert epochs[0] != epochs[1]
