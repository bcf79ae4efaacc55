"""The cost of a collective algorithm on a network, by simulation.

A message of m bytes takes alpha + m beta, and adding m bytes takes m gamma. A rank sends one
message and receives one message at a time, both at once. A message starts when sender and receiver
have finished their previous rounds, as in MPI's rendezvous protocol for large messages.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, Ranks

Floats = NDArray[np.float64]


class Link(NamedTuple):
    """The time of a message on a link: `alpha` seconds plus `beta` seconds for each byte."""

    alpha: float
    beta: float


class Network(NamedTuple):
    """The links between ranks, on one level or two.

    link        alpha and beta of a message
    gamma       seconds to add a byte
    inner       the link within a node; None on one level
    per_node    ranks of a node
    nodes       the node of each rank, from 0, if nodes have different numbers of ranks
    sharing     groups of ranks that use the link of a node at the same time

    On one level, `link` connects every two ranks.

    On two levels, `inner` connects the ranks of a node (`per_node` consecutive ranks, or as `nodes`
    says), and each node has one `link` to the outside, which the messages that cross it in one
    round share.
    """

    link: Link
    gamma: float = 0.0
    inner: Link | None = None
    per_node: int = 1
    nodes: Ranks = None
    sharing: int = 1

    @property
    def node_count(self) -> int:
        """The number of nodes of the ranks, if `nodes` is given."""
        return int(self.nodes.max()) + 1

    def node_of(self, ranks: Ranks) -> Ranks:
        """The node of each of the given ranks."""
        return ranks // self.per_node if self.nodes is None else self.nodes[ranks]

    def seconds(self, source: Ranks, to: Ranks, nbytes: Floats) -> Floats:
        """The time of each message of one round."""
        if self.inner is None:
            return np.asarray(self.link.alpha + nbytes * self.link.beta)
        a, b = self.node_of(source), self.node_of(to)
        nodes = 1 + max(a.max(initial=0), b.max(initial=0))
        out = np.bincount(a[a != b], minlength=nodes)
        into = np.bincount(b[a != b], minlength=nodes)
        waiting = self.sharing * np.maximum(out[a], into[b])  # on the busier of the links of both
        outside = self.link.alpha + waiting * nbytes * self.link.beta
        return np.where(a == b, self.inner.alpha + nbytes * self.inner.beta, outside)


class Price(NamedTuple):
    """The simulated cost of an algorithm.

    seconds     until the last rank has finished
    rounds      number of rounds
    sent        bytes that each rank sends
    messages    messages that each rank sends
    """

    seconds: float
    rounds: int
    sent: Floats
    messages: NDArray[np.int_]


def price(algorithm: Algorithm, p: int, nbytes: float, network: Network) -> Price:
    """Simulates an algorithm on p ranks, each with a buffer of `nbytes`; returns its cost.

    The clocks of all ranks advance together, one round at a time, so memory does not grow with the
    number of messages.
    """
    r = np.arange(p)
    clock, sent, messages = np.zeros(p), np.zeros(p), np.zeros(p, int)
    chunk = nbytes / algorithm.chunks(p)
    for step in algorithm.steps(r, p):
        source = np.broadcast_to(step.source, p)
        dst = np.flatnonzero(source >= 0)
        src = source[dst]
        size = np.broadcast_to((step.recv[1] - step.recv[0]) * chunk, p)[dst]
        arrived = np.maximum(clock[src], clock[dst]) + network.seconds(src, dst, size)
        after = clock.copy()
        after[dst] = arrived + (network.gamma * size if step.reduce else 0.0)
        after[src] = np.maximum(after[src], arrived)  # rendezvous: a sender waits for its receiver
        clock = after
        sent[src] += size
        messages[src] += 1
    return Price(float(clock.max()), algorithm.rounds(p), sent, messages)
