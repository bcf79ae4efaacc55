"""Mixture of experts divided among ranks: each rank has some of the experts.

    whole on all ranks     x, gates ──► experts of this rank, for all tokens ──► all-reduce ──► y

    cut along positions    x, gates of ──► all-to-all ──► experts of ──► all-to-all ──► y of these
                           some tokens     of tokens      this rank      of results     tokens

If all ranks have all tokens, none has to be sent. Backward, one all-reduce sums the gradients of x
and of the gates, of which each rank has the terms of its own experts.

Tokens that are cut along positions (`--sequence-parallel`) go once to each rank that has an expert
for them, together with their gates: C + E_r elements a token for a rank with E_r experts. That rank
sums the outputs of its experts, and C elements come back. In the backward pass C elements of the
gradient go to the experts, and C + E_r come back.

Where arrays have no data (when the cost of a step is predicted), gates have no values, so the
largest traffic is assumed (`Routing`). A step sends that much if all tokens go to all experts. It
sends less if experts are equally loaded: then (p - 1) / p of the tokens leave their rank.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.layer_ways import expert_ops as experts
from nnmpi.addons.layer_ways.experts import Experts, Router
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Prepare, Result, Vjp
from nnmpi.arrays.meta import is_meta
from nnmpi.autograd import Tensor, apply
from nnmpi.collectives.algorithms import Collective
from nnmpi.comm import Comm
from nnmpi.parallel.tensor.layers import Sharded
from nnmpi.parallel.tensor.ops import Bounds, all_gather, all_reduce, all_to_all, span_of
from nnmpi.parallel.tensor.rules import LayerRule, Signature
from nnmpi.parallel.tensor.specs import AxisSharded
from nnmpi.parallel.tensor.ways import (
    POSITIONS,
    F,
    I,
    Message,
    Pattern,
    W,
    Way,
    of_input,
    of_output,
)


def lengths(bounds: Sequence[int]) -> list[int]:
    """Returns the length of each part, where part r has elements bounds[r] to bounds[r + 1] - 1."""
    return [stop - start for start, stop in pairwise(bounds)]


class ShardedExperts(Sharded, Experts):
    """The Experts layer with its experts divided among ranks, which all have all tokens: rank r has
    experts bounds[r] to bounds[r + 1] - 1."""

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        weights = self.weight1, self.bias1, self.weight2, self.bias2
        options = self.options(x) | {"start": span_of(self.bounds, self.comm)[0], "comm": self.comm}
        return apply(experts_on_ranks, x, gates, *weights, **options)


def experts_on_ranks(x: Array, gates: Array, *weights: Array, comm: Comm, **options: Any) -> Result:
    """Returns the outputs of all experts, weighted by `gates` and summed over ranks. All ranks have
    all tokens x and all gates; `weights` are those of this rank's experts."""
    y, vjps, plain, _ = experts.experts(x, gates, *weights, **options)
    xp = xp_of(x)
    assert plain is not None
    all_reduce(y, comm, tuple(range(y.ndim)))

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[list[Array | None], Any]:
        """Returns (the gradients of x and of gates, summed over ranks; what the gradients of the
        weights are computed from), given the gradient g of the output. needs[i] is True if argument
        i (x, gates, weights) needs a gradient; that of x or gates is None if not needed."""
        shared, gradients = plain(g, needs), list[Array | None]((None, None))
        terms = {i: vjps[i](shared, None) for i in range(2) if needs[i]}
        if terms:
            # one message for both gradients
            row = xp.concatenate([d.reshape(-1) for d in terms.values()])
            all_reduce(row, comm)
            for i, d in terms.items():
                gradients[i], row = row[: d.size].reshape(d.shape), row[d.size :]
        return gradients, shared

    return _of_inputs_and_weights(y, vjps, prepare)


def _of_inputs_and_weights(y: Array, vjps: tuple[Vjp, ...], prepare: Prepare) -> Result:
    """Returns the Result of an op of x, gates and weights with the output y. `prepare` returns (the
    gradients of x and gates, what the vjps of the weights need); the first two `vjps` are not
    used."""
    input_vjps: list[Any] = [lambda both, out, i=i: both[0][i] for i in range(2)]
    weight_vjps: list[Any] = [lambda both, out, vjp=vjp: vjp(both[1], out) for vjp in vjps[2:]]
    return Result(y, (*input_vjps, *weight_vjps), prepare)


# ---- tokens that are cut along positions


class CountingRouter(Sharded, Router):
    """A Router (of a mixture of experts) for tokens that are divided along positions: rank r has
    positions bounds[r] to bounds[r + 1] - 1 of each sample.

    An expert takes only the first tokens of a whole sample, up to its capacity. So ranks exchange
    how many of their tokens chose each expert. Each rank computes a part of the sum that is the
    gradient of the router's weight.
    """

    def options(self, x: Tensor) -> dict[str, object]:
        return super().options(x) | {"tokens": self.bounds[-1], "counted": self.counted}

    def counted(self, counts: Array) -> tuple[Array, Array]:
        """Returns the counts of tokens that chose each expert, (N, 1, E): of ranks before this one,
        and of all."""
        rank, size = self.comm.rank, self.comm.size
        ranks = all_gather(counts, self.comm, tuple(range(size + 1)), 1)
        return ranks[:, :rank].sum(axis=1, keepdims=True), ranks.sum(axis=1, keepdims=True)


class ExchangingExperts(Sharded, Experts):
    """The Experts layer for tokens that are divided along positions: rank r has experts bounds[r]
    to bounds[r + 1] - 1, to which tokens are sent, and results are sent back."""

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        weights = self.weight1, self.bias1, self.weight2, self.bias2
        options = {"activation": self.activation, "comm": self.comm, "bounds": self.bounds}
        assert isinstance(self.spec, AxisSharded)
        tokens, E = self.spec.bounds, self.num_experts
        slots = experts.slots_of(tokens[-1], E, self.top_k, self.capacity_factor)
        most = Routing(lengths(tokens), lengths(self.bounds), self.top_k, slots)
        return apply(experts_by_exchange, x, gates, *weights, most=most, **options)


class Routing(NamedTuple):
    """Computes the largest numbers of tokens that ranks may send to each other for one sample, in a
    mixture of experts. They predict the cost of a step, where the router has no values yet.

    tokens   how many tokens each rank has
    experts  how many experts each rank has
    top_k    the largest number of experts of a token
    slots    the largest number of tokens of an expert
    """

    tokens: Sequence[int]
    experts: Sequence[int]
    top_k: int
    slots: int

    def sends(self, me: int) -> list[int]:
        """Returns how many tokens rank `me` may send to each rank: as many as possible to the one
        with most experts, then to the next; the rank's own experts get as many as they take."""
        room = [min(self.tokens[me], n * self.slots) for n in self.experts]
        sends, remaining = [0] * len(room), self.tokens[me] * self.top_k
        for q in sorted(range(len(room)), key=lambda q: -self.experts[q]):
            if q != me:
                sends[q] = min(room[q], remaining)
                remaining -= sends[q]
        sends[me] = room[me]
        return sends

    def receives(self, me: int) -> list[int]:
        """Returns how many tokens rank `me` may receive: from the others as many as its experts can
        take, in proportion to theirs; from itself as `sends` says."""
        others = [n * (r != me) for r, n in enumerate(self.tokens)]
        total = min(sum(others), self.experts[me] * self.slots)
        ends = [total * n // max(sum(others), 1) for n in accumulate(others, initial=0)]
        receives = lengths(ends)
        receives[me] = self.sends(me)[me]
        return receives


class TokenExchange(NamedTuple):
    """The exchange of tokens between ranks with different experts; an expert does not get a token
    for which its gate is 0.

    sends     for each rank, the indices of this rank's tokens that go to one of the experts there
    receives  the number of tokens that come from each rank
    slots     where arrays have no values, the tokens for which an expert computes, so that messages
              without tokens count too; else None
    """

    comm: Comm
    sends: Sequence[Array]
    receives: Sequence[int]
    slots: int | None = None

    def dispatch(self, parts: Sequence[Array], width: int) -> Array:
        """Sends parts[r], tokens of this rank, to rank r; returns the tokens received for this
        rank's experts, as rows of `width` elements."""
        arrived = self._all_to_all(parts, [(n, width) for n in self.receives])
        return xp_of(arrived[0]).concatenate(arrived)

    def combine(self, rows: Array, widths: Sequence[int]) -> list[Array]:
        """Sends `rows`, the outputs of this rank's experts, back; returns for each rank r its
        experts' outputs for this rank's tokens, as rows of widths[r] elements."""
        ends = pairwise(accumulate(self.receives, initial=0))
        shapes = [(len(i), width) for i, width in zip(self.sends, widths, strict=True)]
        return self._all_to_all([rows[start:stop] for start, stop in ends], shapes)

    def _all_to_all(self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        return all_to_all(parts, shapes, self.comm, skips=not self.slots)


def token_exchange(
    gates: Array, comm: Comm, bounds: Bounds, samples: int, most: Routing | None
) -> TokenExchange:
    """Returns the TokenExchange for the gates (tokens, E) of `samples` samples, where rank r has
    experts bounds[r] to bounds[r + 1] - 1. If gates have no values, `most` gives the numbers of
    tokens."""
    xp, me = xp_of(gates), comm.rank
    most = most if is_meta(gates) else None
    if most is None:
        sends = [xp.flatnonzero((gates[:, a:b] != 0).any(axis=1)) for a, b in pairwise(bounds)]
    else:
        sends = [xp.empty(samples * n, int) for n in most.sends(me)]
    counts = np.array([[len(index) for index in sends]])
    # receivers need the lengths before the all-to-all
    ranks = all_gather(counts, comm, tuple(range(comm.size + 1)), 0)
    if most is None:
        return TokenExchange(comm, sends, ranks[:, me].tolist())
    receives = [samples * n for n in most.receives(me)]
    return TokenExchange(comm, sends, receives, min(samples * most.slots, sum(receives)))


def experts_by_exchange(
    x: Array,
    gates: Array,
    *weights: Array,
    comm: Comm,
    bounds: Bounds,
    activation: str,
    most: Routing | None = None,
) -> Result:
    """Returns the summed outputs of all experts for x (N, t, C), the t positions of this rank. Each
    expert of a rank computes for as many tokens as the one with most; others are padded. The
    arguments are those of `token_exchange`."""
    xp, shape, C, spans = xp_of(x), x.shape, x.shape[-1], [*pairwise(bounds)]
    rows, table = x.reshape(-1, C), gates.reshape(-1, bounds[-1])
    exchange, gates_shape = token_exchange(table, comm, bounds, len(x), most), gates.shape
    widths = [C + stop - start for start, stop in spans]
    pairs = zip(exchange.sends, spans, strict=True)
    parts = [xp.concatenate((rows[i], table[i, a:b]), axis=1) for i, (a, b) in pairs]
    tokens = exchange.dispatch(parts, widths[comm.rank])[None]
    slots = exchange.slots
    if slots is None:
        slots = int((tokens[0, :, C:] != 0).sum(axis=0).max())
    options: dict[str, Any] = {"slots": slots, "activation": activation}
    value, vjps, plain, _ = experts.experts(tokens[..., :C], tokens[..., C:], *weights, **options)
    y = xp.zeros(rows.shape, x.dtype)
    for i, part in zip(exchange.sends, exchange.combine(value[0], [C] * comm.size), strict=True):
        y[i] += part
    assert plain is not None

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[tuple[Array, Array] | None, Any]:
        """Returns (the gradients of x and of gates, or None if neither is needed; what the
        gradients of the weights are computed from), given the gradient g of the output. needs[i] is
        True if argument i (x, gates, weights) needs a gradient."""
        flat = g.reshape(-1, C)
        shared = plain(exchange.dispatch([flat[i] for i in exchange.sends], C)[None], needs)
        if True not in needs[:2]:
            return None, shared
        d = xp.concatenate([vjp(shared, None) for vjp in vjps[:2]], axis=-1)
        dx, dgates = xp.zeros(flat.shape, g.dtype), xp.zeros((len(flat), bounds[-1]), g.dtype)
        returned = zip(exchange.sends, exchange.combine(d[0], widths), spans, strict=True)
        for i, part, (start, stop) in returned:
            dx[i] += part[:, :C]
            dgates[i, start:stop] = part[:, C:]
        return (dx.reshape(shape), dgates.reshape(gates_shape)), shared

    return _of_inputs_and_weights(y.reshape(shape), vjps, prepare)


# no cost, because no other way leaves as few activations whole
COUNTS = Message(
    Collective.GATHER_COUNTS, of_output, F, 0, "all-gather of how many tokens chose each expert"
)
EXCHANGE = Collective.ALL_TO_ALL
TOKENS = Message(EXCHANGE, of_input, F, 0, "all-to-all of tokens, and back of results")
RESULTS = Message(EXCHANGE, of_output, F, 0)
RESULT_GRADIENTS = Message(EXCHANGE, of_output, I | W, 0, "the same of their gradients")
TOKEN_GRADIENTS = Message(EXCHANGE, of_input, I, 0)

ROUTER = Pattern("counts", (COUNTS,))
EXPERTS = Pattern("all-to-all", (TOKENS, RESULTS, RESULT_GRADIENTS, TOKEN_GRADIENTS), divides=True)

_PARAMETERS = {"weight1": 0, "bias1": 0, "weight2": 0, "bias2": 0}
_HERE = Way(None, None, _PARAMETERS, divided="experts", inputs=2, part=ShardedExperts)
_EXCHANGED = _HERE._replace(
    input=POSITIONS, output=POSITIONS, named=EXPERTS, part=ExchangingExperts
)
_WEIGHTS = {"weight1": "e##", "bias1": "e#", "weight2": "e##", "bias2": "e#"}
EXPERTS_RULE = LayerRule((_HERE, _EXCHANGED), Signature("ntc", "ntc", _WEIGHTS, moves="t"))
ROUTER_RULE = LayerRule(
    (Way(POSITIONS, POSITIONS, named=ROUTER, part=CountingRouter),),
    Signature("ntc", "nt#", {"weight": "#c"}, {"t": "counts"}),
)
