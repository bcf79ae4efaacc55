"""The cost of a plan on a network, by simulation.

A message of m bytes takes alpha + m beta, and adding m bytes takes m gamma. A rank sends one
message and receives one message at a time, both at once. A message starts when sender and receiver
have finished their previous rounds, as in MPI's rendezvous protocol for large messages.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, Ranks

Floats = NDArray[np.float64]


class Link(NamedTuple):
    """The time of messages: `alpha` seconds for each, and `beta` for each byte."""

    alpha: float
    beta: float


class Network(NamedTuple):
    """The links between ranks.

    link        alpha and beta of a message
    gamma       seconds to add a byte
    inner       the links within a node, where there are two levels
    per_node    ranks of a node

    On one level, `link` connects every two ranks.

    On two levels, `inner` connects the ranks of a node (`per_node` consecutive ranks), and each
    node has one `link` to the outside, shared by the messages that cross it in one round.
    """

    link: Link
    gamma: float = 0.0
    inner: Link | None = None
    per_node: int = 1

    def seconds(self, source: Ranks, to: Ranks, nbytes: Floats) -> Floats:
        """The time of each message of one round."""
        if self.inner is None:
            return np.asarray(self.link.alpha + nbytes * self.link.beta)
        a, b = source // self.per_node, to // self.per_node
        nodes = 1 + max(a.max(initial=0), b.max(initial=0))
        out = np.bincount(a[a != b], minlength=nodes)
        into = np.bincount(b[a != b], minlength=nodes)
        sharing = np.maximum(out[a], into[b])  # messages on the busier of the two links of each
        outside = self.link.alpha + sharing * nbytes * self.link.beta
        return np.where(a == b, self.inner.alpha + nbytes * self.inner.beta, outside)


class Links(Protocol):
    """The links that a price is asked of: those of a network, or the links of some of its ranks."""

    @property
    def gamma(self) -> float:
        """Seconds to add a byte."""

    def seconds(self, source: Ranks, to: Ranks, nbytes: Floats) -> Floats:
        """The time of each message of one round."""


class Price(NamedTuple):
    """The simulated cost of a plan.

    seconds     until the last rank has finished
    rounds      of the plan
    sent        bytes that each rank sends
    messages    that each rank sends
    """

    seconds: float
    rounds: int
    sent: Floats
    messages: NDArray[np.int_]


def price(algorithm: Algorithm, p: int, nbytes: float, network: Links) -> Price:
    """The time until the last of p ranks has finished, each with a buffer of `nbytes`.

    The clocks of all ranks advance together, one round at a time, so memory does not grow with the
    number of messages.
    """
    r = np.arange(p)
    clock, sent, messages = np.zeros(p), np.zeros(p), np.zeros(p, int)
    chunk = nbytes / algorithm.chunks(p)
    for step in algorithm.steps(r, p):
        source = np.broadcast_to(step.source, p)
        into = np.flatnonzero(source >= 0)
        of = source[into]
        size = np.broadcast_to((step.recv[1] - step.recv[0]) * chunk, p)[into]
        arrived = np.maximum(clock[of], clock[into]) + network.seconds(of, into, size)
        after = clock.copy()
        after[into] = arrived + (network.gamma * size if step.reduce else 0.0)
        after[of] = np.maximum(after[of], arrived)
        clock = after
        sent[of] += size
        messages[of] += 1
    return Price(float(clock.max()), algorithm.rounds(p), sent, messages)
