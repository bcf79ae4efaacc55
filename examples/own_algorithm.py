"""An all-reduce of your own: mpirun --oversubscribe -n 4 python examples/own_algorithm.py

A tree whose nodes have two children: of three neighbouring groups of ranks, the first adds what
the other two send, one after the other. It has fewer levels than a binary tree, and never beats
it: two children wait for each other. docs/your-own-algorithm.md explains how to write one.
"""

import numpy as np

from nnmpi.collectives import ALGORITHMS, Algorithm, Step, only, then, transpose
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.verify import verify
from nnmpi.comm import world


def to_the_root(t, r, p):
    """Rounds 2 k and 2 k + 1: ranks at distances 3^k and 2 * 3^k from their parent send to it."""
    d, child = 3 ** (t // 2), 1 + t % 2
    sends = r % (3 * d) == child * d
    receives = (r % (3 * d) == 0) & (r + child * d < p)
    return Step(only(sends, r - child * d), (0, 1), only(receives, r + child * d), (0, 1), True)


def rounds(p):
    """Two for each level of the tree."""
    return 2 * next(k for k in range(p) if 3**k >= p)


half = Algorithm(rounds, lambda p: 1, to_the_root)
TERNARY = then(half, transpose(half))

if __name__ == "__main__":
    comm = world()
    verify(TERNARY, comm.size)  # raises PlanError if it is no all-reduce
    x = np.full(1000, comm.rank + 1.0)
    comm.carry_out(TERNARY, x)
    if comm.rank == 0:
        print(f"sum {x[0]:g}, sent {sum(comm.ledger.sent_bytes)} bytes")
        network = Network(Link(alpha=5e-6, beta=1e-10))
        for p in (9, 16, 27):
            tree, ternary = (price(a, p, 1e6, network) for a in (ALGORITHMS["tree"], TERNARY))
            print(f"{p} ranks, 1 MB: {ternary.seconds / tree.seconds:.2f} of the time of tree")
