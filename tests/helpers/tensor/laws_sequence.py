"""Laws of sequence parallelism, on any Comm of at most four ranks."""

import numpy as np
from helpers.saved_memory import nbytes, saved_memory
from helpers.training import laws_language
from helpers.training.pipelined import Options, trains_as_one_rank

from nnmpi import Tensor, nn
from nnmpi.autograd import apply
from nnmpi.autograd.ops.linear import linear
from nnmpi.comm import Comm
from nnmpi.parallel.tensor import POSITIONS, Way
from nnmpi.parallel.tensor.layers import gathering_linear, row, sharded_lookup
from nnmpi.parallel.tensor.ops import Bounds, span_of
from nnmpi.parallel.tensor.specs import AxisSharded

N, T, K = 3, 7, 8
SEQUENCE = {"sequence_parallel": True}


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def _uneven(comm: Comm) -> tuple[AxisSharded, slice]:
    """The last rank has most of the positions; a spec, and this rank's."""
    bounds: Bounds = (*range(comm.size), T)
    return AxisSharded(comm, bounds), slice(*span_of(bounds, comm))


def a_sum_is_cut_and_parts_are_gathered(comm: Comm) -> None:
    spec, here = _uneven(comm)
    terms = [_random(r, N, T, K) for r in range(comm.size)]
    part = spec.sum(terms[comm.rank].copy())
    np.testing.assert_allclose(part, sum(terms)[:, here], rtol=1e-13)
    assert part.base is None  # the memory of the whole sum is not kept
    np.testing.assert_array_equal(spec.whole(terms[0][:, here]), terms[0])


def the_sum_is_the_transpose_of_the_gather(comm: Comm) -> None:
    """<sum(x), y> = <x, whole(y)>, added up over the ranks."""
    spec, here = _uneven(comm)
    x, y = _random(comm.rank, N, T, K), _random(9 + comm.rank, N, here.stop - here.start, K)
    both = np.array([(spec.sum(x.copy()) * y).sum(), (x * spec.whole(y)).sum()])
    comm.all_reduce(both, "doubling")
    np.testing.assert_allclose(*both, rtol=1e-12)


def a_column_of_positions_equals_linear(comm: Comm) -> None:
    spec, here = _uneven(comm)
    for relu in (False, True):
        x, w, b = _random(1, N, T, K), _random(2 + comm.rank, 5, K), _random(7, 5)
        g = _random(10 + comm.rank, N, T, 5)
        mine = Tensor(x[:, here].copy(), requires_grad=True)
        leaves = [mine, Tensor(w, requires_grad=True), Tensor(b, requires_grad=True)]
        y = apply(gathering_linear, *leaves, spec=spec, relu=relu)
        most = mine.array.nbytes + w.nbytes + b.nbytes + y.array.nbytes
        assert nbytes(saved_memory([y]).values()) <= most, "it keeps positions of other ranks"
        whole = [Tensor(a, requires_grad=True) for a in (x, w, b)]
        wanted = apply(linear, *whole, relu=relu)
        np.testing.assert_allclose(y.array, wanted.array, rtol=1e-12)
        y.backward(g)
        wanted.backward(g)
        dx = whole[0].grad_array
        comm.all_reduce(dx, "doubling")
        for got, want in zip(
            leaves, (dx[:, here], whole[1].grad_array, whole[2].grad_array), strict=True
        ):
            np.testing.assert_allclose(got.grad_array, want, rtol=1e-11, atol=1e-12)


def a_row_of_positions_equals_linear(comm: Comm) -> None:
    spec, here = _uneven(comm)
    for relu in (False, True):
        x, w, b = _random(1, N, T, 2 * comm.size), _random(2, 5, 2 * comm.size), _random(3, 5)
        g, some = _random(4, N, T, 5), slice(2 * comm.rank, 2 * comm.rank + 2)
        parts = [Tensor(a, requires_grad=True) for a in (x[..., some].copy(), w[:, some].copy(), b)]
        y = apply(row, *parts, of=linear, spec=spec, axis=-1, relu=relu)
        whole = [Tensor(a, requires_grad=True) for a in (x, w, b)]
        wanted = apply(linear, *whole, relu=relu)
        np.testing.assert_allclose(y.array, wanted.array[:, here], rtol=1e-12)
        y.backward(g[:, here])
        wanted.backward(g)
        db = parts[2].grad_array
        comm.all_reduce(db, "doubling")  # of which each rank has a term
        np.testing.assert_allclose(parts[0].grad_array, whole[0].grad_array[..., some], rtol=1e-11)
        np.testing.assert_allclose(parts[1].grad_array, whole[1].grad_array[:, some], rtol=1e-11)
        np.testing.assert_allclose(db, whole[2].grad_array, rtol=1e-11)


def an_embedding_gives_positions(comm: Comm) -> None:
    spec, here = _uneven(comm)
    index, w = np.random.default_rng(0).integers(0, 12, (N, T)), _random(1, 12, K)
    rows = slice(12 * comm.rank // comm.size, 12 * (comm.rank + 1) // comm.size)
    part = Tensor(w[rows], requires_grad=True)
    y = apply(sharded_lookup, part, index=index, start=rows.start, padding=None, spec=spec)
    np.testing.assert_array_equal(y.array, w[index][:, here])
    g, wanted = _random(2, N, T, K), np.zeros_like(w)
    y.backward(g[:, here])
    np.add.at(wanted, index, g)
    np.testing.assert_allclose(part.grad_array, wanted[rows], rtol=1e-12)


class Scale(nn.Module):
    """A layer of one's own that treats each position alone."""

    sharding = (Way(POSITIONS, POSITIONS),)

    def __init__(self, width: int) -> None:
        self.weight = nn.Parameter(np.linspace(0.5, 2, width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def tokens_alone() -> nn.Module:
    """Each position alone, without attention; positions for longer samples than there are."""
    layers = (
        *(nn.Embedding(17, 12), nn.PositionalEmbedding(9, 12), Scale(12), nn.Linear(12, 16)),
        *(nn.ReLU(), nn.Linear(16, 12), nn.Dropout(0.2), nn.LayerNorm(12), nn.Linear(12, 17)),
    )
    return nn.Sequential(*layers, nn.ChannelsFirst())


def a_model_of_positions_trains_as_one_rank(comm: Comm) -> None:
    layout = {"tp": comm.size, **SEQUENCE} if comm.size > 1 else {}
    case: Options = {"build": tokens_alone, "given": laws_language.tokens, "batch_size": 9}
    trains_as_one_rank(layout, {**case, "clip_norm": 0.3}, comm)
