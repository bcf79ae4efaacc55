"""The cost of a collective algorithm on a network, by simulation.

A message of m bytes takes alpha + m beta, and adding m bytes takes m gamma. At any time a rank
sends at most one message and receives at most one; an algorithm may have several ports, each of
which sends and receives one. Messages of a round that cross the same link share its bandwidth. A
message starts when sender and receiver have finished their previous rounds, as in MPI's rendezvous
protocol for large messages.
"""

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, Ranks, Step, in_rounds
from nnmpi.collectives.topology import Topology, crowd, out_and_in, through

Floats = NDArray[np.float64]


class Link(NamedTuple):
    """The time of a message on a link: `alpha` seconds plus `beta` seconds for each byte."""

    alpha: float
    beta: float


NEAR, FAR = Link(1e-6, 1e-10), Link(2e-5, 8e-10)
"""Typical links within a node, and between nodes: 10 Gbit/s."""


class Network(NamedTuple):
    """The links between ranks: all alike, faster within nodes, or given by a topology.

    link        alpha and beta of a message
    gamma       seconds to add a byte
    inner       the link within a node; None on one level
    per_node    the number of ranks of a node
    nodes       the node of each rank, from 0, if nodes have different numbers of ranks
    sharing     the number of groups of ranks that use the link of a node at the same time, each for
                its own collective
    topology    the links that messages cross, each of them a `link`

    On two levels, `inner` connects the ranks of a node (`per_node` consecutive ranks, or as `nodes`
    says), and each node has one `link` to the outside, shared by messages of a round.
    """

    link: Link
    gamma: float = 0.0
    inner: Link | None = None
    per_node: int = 1
    nodes: Ranks = None
    sharing: int = 1
    topology: Topology | None = None

    @property
    def node_count(self) -> int:
        """The number of nodes of the ranks, if `nodes` is given."""
        return int(self.nodes.max()) + 1

    def node_of(self, ranks: Ranks) -> Ranks:
        """The node of each of the given ranks."""
        return ranks // self.per_node if self.nodes is None else self.nodes[ranks]

    def links(self, source: Ranks, to: Ranks) -> Ranks:
        """Returns the links that each message crosses, one column per message."""
        if self.topology is not None:
            return self.topology.links(source, to)
        if self.inner is None:
            return out_and_in(source, to)
        a, b = self.node_of(source), self.node_of(to)
        return through(a == b, source, to, a, b)

    def seconds(self, source: Ranks, to: Ranks, nbytes: Floats, ports: int = 1) -> Floats:
        """Returns the seconds that each message of one round takes, on the most loaded of its
        links; `ports` is the number of messages that a rank sends at once."""
        if ports == 1 and self.topology is None and self.inner is None:  # nothing is shared
            return np.asarray(self.link.alpha + nbytes * self.link.beta)
        waiting = crowd(self.links(source, to), self.topology and self.topology.width)
        if self.inner is None:
            return np.asarray(self.link.alpha + waiting * nbytes * self.link.beta, float)
        outside: Floats = self.link.alpha + self.sharing * waiting * nbytes * self.link.beta
        near = self.node_of(source) == self.node_of(to)
        return np.where(near, self.inner.alpha + waiting * nbytes * self.inner.beta, outside)


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


def in_memory(network: Network, ranks: int, nbytes: float) -> float:
    """Returns the seconds in which the ranks of a node write their buffers, of `nbytes` each, to
    shared memory, sum them there, and read the sum; 0 for a single rank."""
    if ranks == 1:
        return 0.0
    assert network.inner is not None
    alpha, beta = network.inner
    return 2 * alpha + nbytes * (2 * beta + network.gamma * (ranks - 1))


def price(algorithm: Algorithm, p: int, nbytes: float, network: Network) -> Price:
    """Simulates an algorithm on p ranks, each with a buffer of `nbytes`, one round at a time, so
    that memory does not grow with the number of messages. One clock stands for ranks that do the
    same."""
    clock, sent, messages, rounds = np.zeros(p), np.zeros(p), np.zeros(p, int), 0
    chunk = nbytes / algorithm.chunks(p)
    for times, steps in _runs(algorithm, p):
        rounds += times
        src, dst, chunks, is_added = np.concatenate([_messages(s, p) for s in steps], axis=1)
        size = chunks * chunk
        seconds, left = network.seconds(src, dst, size, len(steps)), times
        if times > 1 and len(dst) == p and not any(map(np.ptp, (clock, seconds, size * is_added))):
            adding = network.gamma * size[0] * is_added[0]
            clock[:] = reduce(lambda now, _: now + seconds[0] + adding, range(times), clock[0])
            left = 0
        for _ in range(left):
            arrived = np.maximum(clock[src], clock[dst]) + seconds
            after = clock.copy()
            np.maximum.at(after, dst, arrived)
            after += np.bincount(dst, network.gamma * size * is_added, p)
            np.maximum.at(after, src, arrived)  # rendezvous: a sender waits for its receiver
            clock = after
        sent += times * np.bincount(src, size, p)
        messages += times * sum(np.broadcast_to(s.messages(algorithm.chunks(p)), p) for s in steps)
    return Price(float(clock.max()), rounds, sent, messages)


def _runs(algorithm: Algorithm, p: int) -> Iterator[tuple[int, list[Step]]]:
    """Divides an algorithm into runs of rounds that cost the same: yields the number of rounds of
    each run, and the steps of one of them."""
    r, t = np.arange(p), 0
    if algorithm.runs is None:
        yield from ((1, steps) for steps in in_rounds(algorithm.steps(r, p)))
        return
    for times in algorithm.runs(p):
        if times:
            yield times, [algorithm.at(t, r, p)]
        t += times


def _messages(step: Step, p: int) -> Ranks:
    """Returns rows of all messages: senders, receivers, chunks, and 1 if added."""
    source = np.broadcast_to(step.source, p)
    to = np.flatnonzero(source >= 0)
    chunks = np.broadcast_to(step.count(step.recv), p)[to]
    return np.array([source[to], to, chunks, np.full(len(to), step.reduce)])
