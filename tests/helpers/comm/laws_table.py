"""Laws over the table of collectives: what they give, what they send, and their transposes."""

from itertools import product

import numpy as np
from helpers.comm.brought import Array, gathered

from nnmpi.collectives.algorithms import Collective
from nnmpi.comm import Comm
from nnmpi.parallel.arrangement.exchanges import algorithm_traffic

TABLE = [collective for collective in Collective if collective.algorithms]


def at_start(collective: Collective, xs: Array) -> Array:
    """The chunks that the ranks bring, a row a rank; NaN where a rank has none."""
    has = [[collective.claim.starts(r, c) for c in range(xs.shape[1])] for r in range(len(xs))]
    return np.where(has, xs, np.nan)


def at_end(collective: Collective, xs: Array) -> Array:
    """What must come of them; NaN where that may be anything."""
    rows = np.full_like(xs, np.nan)
    for r, c in np.ndindex(xs.shape):
        ranks = collective.claim.ends(r, c, len(xs))
        rows[r, c] = np.nan if ranks is None else xs[sorted(ranks), c].sum()
    return rows


def each_collective_does_what_the_table_says(comm: Comm) -> None:
    """The result is that of the claim; bytes and messages are those that are predicted."""
    p, r = comm.size, comm.rank
    for collective in TABLE:
        for name, algorithm in collective.algorithms.items():
            xs = np.random.default_rng(0).standard_normal((p, algorithm.chunks(p)))
            x, want = at_start(collective, xs)[r], at_end(collective, xs)[r]
            comm.ledger.reset()
            comm.carry_out(algorithm, x)
            sent = sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages)
            assert sent == algorithm_traffic(algorithm, range(p), r, x.size, x.dtype), name
            np.testing.assert_allclose(np.where(np.isnan(want), want, x), want, 1e-12, 1e-12, name)


def transposes_are_collectives_too(comm: Comm) -> None:
    """<y, f(x)> = <g(y), x> over all ranks, if the claim of g is the transpose of that of f; each
    has one, so that gradients can go back."""
    p = comm.size
    xs, ys = np.random.default_rng(1).standard_normal((2, p, p))

    def after(collective: Collective, brought: Array) -> Array:
        x = at_start(collective, brought)[comm.rank]
        comm.carry_out(next(iter(collective.algorithms.values())), x)
        rows = gathered(comm, x).view(x.dtype)
        return np.where(np.isnan(at_end(collective, brought)), 0, rows)

    def matrix(collective: Collective) -> Array:
        units = np.eye(p * p).reshape(p * p, p, p)
        brought = (np.nan_to_num(at_start(collective, unit)) for unit in units)
        return np.nan_to_num([at_end(collective, unit).ravel() for unit in brought])

    matrices, found = {collective: matrix(collective) for collective in TABLE}, set[Collective]()
    for f, g in product(TABLE, TABLE):
        # an all-to-all with its chunks in this order goes back
        order = np.arange(p) * (-1 if g is Collective.ALL_TO_ALL else 1) % p
        turned = (np.arange(p)[:, None] * p + order).ravel()
        if (matrices[g][turned][:, turned] == matrices[f].T).all():
            back = after(g, ys[:, order])[:, order]
            np.testing.assert_allclose((ys * after(f, xs)).sum(), (back * xs).sum(), 1e-12)
            found.add(f)
    assert found == {*TABLE}
