"""Laws of experts whose tokens are cut along positions, on any Comm of at most five ranks."""

from typing import Any

import numpy as np

from nnmpi import nn
from nnmpi.addons.layer_ways import expert_ops as experts
from nnmpi.addons.layer_ways.experts import Router
from nnmpi.addons.layer_ways.experts_on_ranks import CountingRouter, experts_by_exchange
from nnmpi.autograd import Tensor, apply
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.parallel.tensor.ops import Bounds, all_to_all, span_of

N, T, C, H, E = 3, 7, 4, 6, 5


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def _uneven(comm: Comm) -> tuple[Bounds, slice]:
    """The last rank has most of the positions; these, and the ones of this rank."""
    cut: Bounds = (*range(comm.size), T)
    return cut, slice(*span_of(cut, comm))


def _sent(comm: Comm) -> np.ndarray:
    """Bytes and messages that this rank has sent so far, to each rank."""
    return np.array([comm.ledger.sent_bytes, comm.ledger.sent_messages])


def arrays_of_any_shape_arrive(comm: Comm) -> None:
    """Rank r has r * to rows for rank `to`, each as long as that says; rank 0 has none, and gets
    none."""
    me, p = comm.rank, comm.size

    def part(r: int, to: int) -> np.ndarray:
        return np.full((r * to, 1 + to), 10.0 * r + to)

    before = np.array(comm.ledger.sent_messages)
    found = all_to_all([part(me, r) for r in range(p)], [part(r, me).shape for r in range(p)], comm)
    for r, array in enumerate(found):
        np.testing.assert_array_equal(array, part(r, me), strict=True)
    sent = sum(np.array(comm.ledger.sent_messages) - before)
    assert sent == (p - 2 if me else 0), "it sends arrays without numbers"


def _gates(kind: str, cut: Bounds) -> np.ndarray:
    """Of two tokens in three some, of one expert none; or all tokens go to the last expert."""
    gates = np.where(_random(3, N, T, E) > 0.4, _random(4, N, T, E), 0.0)
    gates[:, :, 1] = 0
    if kind == "one expert":
        gates[..., :-1], gates[..., -1] = 0, 0.7
    if kind == "none":
        gates[...] = 0
    if kind == "one rank's":
        gates[:, : cut[-2]] = 0
    return gates


def tokens_go_to_their_experts_and_back(comm: Comm) -> None:
    """Values and all gradients are those of one rank; also of no samples."""
    (cut, here), spread = _uneven(comm), bounds(E, comm.size)
    some = slice(*span_of(spread, comm))
    for kind in ("some", "one expert", "none", "one rank's", "no samples"):
        n = 0 if kind == "no samples" else N
        x, g, gates = _random(1, N, T, C)[:n], _random(2, N, T, C)[:n], _gates(kind, cut)[:n]
        weights = [_random(5 + i, *s) for i, s in enumerate(((E, H, C), (E, H), (E, C, H), (E, C)))]
        whole = [Tensor(a, requires_grad=True) for a in (x, gates, *weights)]
        wanted = apply(experts.experts, *whole, slots=T)
        wanted.backward(g)
        part = [a[:, here].copy() for a in (x, gates)] + [w[some].copy() for w in weights]
        mine = [Tensor(a, requires_grad=True) for a in part]
        options: dict[str, Any] = {"comm": comm, "bounds": spread, "activation": "gelu"}
        y = apply(experts_by_exchange, *mine, **options)
        np.testing.assert_allclose(y.array, wanted.array[:, here], rtol=1e-12, atol=1e-13)
        y.backward(g[:, here])
        for k, (got, want) in enumerate(zip(mine, whole, strict=True)):
            of_rank = want.grad_array[:, here] if k < 2 else want.grad_array[some]
            np.testing.assert_allclose(
                got.grad_array, of_rank, rtol=1e-11, atol=1e-12, err_msg=kind
            )


def _router(kind: type[Any], top_k: int, factor: float, auxiliary: float) -> Any:
    router = nn.MixtureOfExperts(C, H, E, top_k, factor, auxiliary).router.to("float64")
    router.__class__ = kind
    return router


def a_router_knows_the_tokens_before_its_own(comm: Comm) -> None:
    """Gates and gradients are those of whole samples, some of whose tokens find no room."""
    cut, here = _uneven(comm)
    for top_k, factor, auxiliary in ((2, 0.6, 0.3), (1, 0.5, 0.3), (1, 1.0, 0.0), (E, 1.0, 0.1)):
        x, g = _random(1, N, T, C), _random(2, N, T, E)
        one = _router(Router, top_k, factor, auxiliary)
        whole = Tensor(x, requires_grad=True)
        gates = one(whole)
        chosen = np.count_nonzero(gates.array)
        assert chosen < N * T * top_k or factor == 1, "there is room for all of them"
        gates.backward(g)
        router = _router(CountingRouter, top_k, factor, auxiliary)
        router.comm, router.bounds = comm, cut
        mine = Tensor(x[:, here].copy(), requires_grad=True)
        found = router(mine)
        np.testing.assert_allclose(found.array, gates.array[:, here], rtol=1e-12)
        found.backward(g[:, here])
        np.testing.assert_allclose(
            mine.grad_array, whole.grad_array[:, here], rtol=1e-11, atol=1e-13
        )
        total = router.weight.grad_array.copy()
        comm.all_reduce(total, "doubling")  # of which each rank has a term
        np.testing.assert_allclose(total, one.weight.grad_array, rtol=1e-11, atol=1e-13)


def a_token_goes_once_to_a_rank(comm: Comm) -> None:
    """Every token chooses both experts of the next rank: bytes and messages, there and back."""
    p = comm.size
    gates, after = np.zeros((N, 2, 2 * p)), (comm.rank + 1) % p
    gates[:, :, 2 * after : 2 * after + 2] = 0.5
    x, spread = (
        Tensor(_random(comm.rank, N, 2, C), requires_grad=True),
        tuple(range(0, 2 * p + 1, 2)),
    )
    weights = [_random(5, 2, H, C), _random(6, 2, H), _random(7, 2, C, H), _random(8, 2, C)]
    options: dict[str, Any] = {"comm": comm, "bounds": (*spread,), "activation": "relu"}
    before = _sent(comm)
    y = apply(experts_by_exchange, x, Tensor(gates, requires_grad=True), *weights, **options)
    y.backward(np.ones((N, 2, C)))
    counts, tokens, with_gates = p * (p - 1), 2 * N, C + 2
    numbers = counts + tokens * (with_gates + C + C + with_gates)
    sent = (_sent(comm) - before).sum(axis=1)
    assert [*sent] == ([8 * numbers, p - 1 + 4] if p > 1 else [0, 0])


def equally_loaded_experts_send_what_the_table_says(comm: Comm) -> None:
    """2 top_k (p - 1) / p^2 of T C numbers a sample (benchmarks/measured/sequences.md), here with
    one expert a rank, to which one token of each rank goes."""
    p, T = comm.size, comm.size**2
    gates = np.broadcast_to(np.eye(p), (N, p, p)).copy()
    weights = [_random(5, 1, H, C), _random(6, 1, H), _random(7, 1, C, H), _random(8, 1, C)]
    x, before = _random(comm.rank, N, p, C), _sent(comm)
    cut = tuple(range(p + 1))
    experts_by_exchange(x, gates, *weights, comm=comm, bounds=cut, activation="relu")
    table, of_gates, counts = 2 * (p - 1) / p**2 * T * C, p - 1, p * (p - 1)
    sent = (_sent(comm) - before).sum(axis=1)
    assert [*sent] == [8 * (N * (table + of_gates) + counts), 3 * (p - 1)]
