"""The letters that costs are written in, and formulas over them.

p  ranks                  M  bytes in the buffer     m  M/p, a rank's share of it
a  alpha, a message       b  beta, a byte            g  gamma, adding a byte
L  log p, rounded up      k  log p, rounded down
e  p - 2^k, how many ranks have to sit out           f  1 if e > 0, else 0
S  the chunks, of p, in the largest messages of a halving: d + min(d, e) for d = 1, 2, ... 2^(k-1)
q  ranks in a node        n  nodes                   h  log2 of the ranks in a full node, rounded up
a' and b'  alpha and beta of the link inside a node
"""

from collections.abc import Callable
from math import log2
from typing import NamedTuple

from nnmpi.collectives.algorithms import levels
from nnmpi.collectives.price import Network


class Letters(NamedTuple):
    """The letters of the formulas, as numbers."""

    p: int
    M: float
    a: float
    b: float
    g: float
    log: float
    L: int
    k: int
    e: int
    f: int
    S: int
    n: int
    h: int
    inner_a: float
    inner_b: float

    @property
    def m(self) -> float:
        """A rank's share of the buffer."""
        return self.M / self.p


def letters(p: int, nbytes: float, network: Network, per_node: int = 2) -> Letters:
    """What the letters stand for; without an inner link a node is joined like everything else."""
    k = p.bit_length() - 1
    e = p - (1 << k)
    inner = network.inner or network.link
    return Letters(
        p=p,
        M=nbytes,
        a=network.link.alpha,
        b=network.link.beta,
        g=network.gamma,
        log=log2(p),
        L=levels(p),
        k=k,
        e=e,
        f=int(e > 0),
        S=sum(d + min(d, e) for d in (1 << i for i in range(k))),
        n=-(-p // per_node),
        h=levels(min(p, per_node)),
        inner_a=inner.alpha,
        inner_b=inner.beta,
    )


class Formula(NamedTuple):
    """A formula as people read it, and as a function of its letters."""

    text: str
    seconds: Callable[[Letters], float]


class Difference(NamedTuple):
    """What our plan takes beyond the textbook (or less, if negative), and why."""

    why: str
    formula: Formula


class Cost(NamedTuple):
    """plan = textbook + differences, where there is a textbook formula."""

    textbook: Formula | None
    plan: Formula
    differences: tuple[Difference, ...] = ()
