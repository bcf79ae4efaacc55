"""What a plan costs on a network, without carrying it out.

A message of m bytes takes alpha + m beta, and adding m bytes takes m gamma. A rank sends one
message and receives one message at a time, both at once. A message starts when both its ends have
finished their rounds before, which is how large messages travel.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, Ranks

Floats = NDArray[np.float64]


class Link(NamedTuple):
    """alpha in seconds a message, beta in seconds a byte."""

    alpha: float
    beta: float


class Network(NamedTuple):
    """One level: every two ranks are joined by `link`.

    Two levels: ranks of one node (`per_node` in a row) are joined by `inner`, and a node has one
    `link` to the outside, which messages that leave it or arrive at it in one round share.
    """

    link: Link
    gamma: float = 0.0
    inner: Link | None = None
    per_node: int = 1

    def seconds(self, source: Ranks, to: Ranks, nbytes: Floats) -> Floats:
        """How long each of the messages of one round takes."""
        outside = self.link.alpha + self._sharing(source, to) * nbytes * self.link.beta
        if self.inner is None:
            return np.asarray(outside)
        inside = self.inner.alpha + nbytes * self.inner.beta
        return np.where(source // self.per_node == to // self.per_node, inside, outside)

    def _sharing(self, source: Ranks, to: Ranks) -> Ranks:
        """How many messages share the busier of the two links that each message crosses."""
        if self.inner is None:
            return 1
        a, b = source // self.per_node, to // self.per_node
        nodes = 1 + max(a.max(initial=0), b.max(initial=0))
        out = np.bincount(a[a != b], minlength=nodes)
        into = np.bincount(b[a != b], minlength=nodes)
        return np.maximum(out[a], into[b])


class Price(NamedTuple):
    """What the simulation of a plan says."""

    seconds: float
    rounds: int
    sent: Floats  # bytes, one figure a rank
    messages: NDArray[np.int_]  # messages sent, one figure a rank


def price(algorithm: Algorithm, p: int, nbytes: float, network: Network) -> Price:
    """The time until the last of p ranks is done, each having a buffer of `nbytes`.

    The clocks of all ranks go on together, a round at a time, so that memory does not grow with the
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
        now = clock.copy()
        now[into] = arrived + (network.gamma * size if step.reduce else 0.0)
        now[of] = np.maximum(now[of], arrived)
        clock = now
        sent[of] += size
        messages[of] += 1
    return Price(float(clock.max()), algorithm.rounds(p), sent, messages)
