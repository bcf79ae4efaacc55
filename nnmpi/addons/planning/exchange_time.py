"""Predicts how long an exchange (a collective, or messages) takes: from a measured curve within a
node, otherwise by simulating the messages on links.

All groups along an axis exchange at the same time, so they share the link of a node to others:

    node 0  r0 r1 ══╗          dp 2 over two nodes, two groups:
    node 1  r2 r3 ══╝          r0, r2 and r1, r3 have half of the link each
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from nnmpi.addons.planning.machine import Machine
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.gossip import GRAPHS, Gossip
from nnmpi.collectives.price import Network, in_memory, price
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.schedules.op import Kind

THROUGH_MEMORY = "shared", "hierarchical"
"""All-reduces that sum in the shared memory of each node, and then among one rank of each node."""

IN_PLACE = "shared in place"
"""The name in a machine file of sums in shared memory without a copy."""


def curve_name(operation: Collective, algorithm: str, ranks: int) -> str:
    """Returns a collective's key in `Machine.sums`, such as "all_reduce shared 2"."""
    return f"{operation.value} {algorithm} {ranks}"


class ExchangeTimes:
    """Predicts the seconds of exchanges between equal nodes; equal ones are computed once."""

    def __init__(self, machine: Machine, cluster: Cluster) -> None:
        self._machine, self._cluster = machine, cluster
        self._on_node = Counter(cluster.nodes)
        self._links = dict[tuple[int, ...], Network]()
        self._found = dict[tuple[Collective, str, bytes, int, int, int], float]()

    def seconds(self, exchange: Exchange) -> float:
        """Returns the seconds of an exchange in a step: those of one, times how often it occurs."""
        if len(exchange.group) == 1 or not exchange.times:
            return 0.0
        links = self.links(exchange.group)
        of_links = links.nodes.tobytes(), links.sharing
        key = (
            exchange.operation,
            _measured_as(exchange),
            *of_links,
            exchange.nbytes,
            exchange.wire_bytes,
        )
        if key not in self._found:
            self._found[key] = self._price(exchange, links)
        return exchange.times * self._found[key] / exchange.every

    def total(self, exchanges: Iterable[Exchange]) -> float:
        """Returns the seconds of several exchanges that are made one after the other."""
        return sum(map(self.seconds, exchanges))

    def links(self, group: tuple[int, ...]) -> Network:
        """Returns the links between a group's ranks, and how many groups share a node's."""
        if group not in self._links:
            places = [self._cluster.nodes[r] for r in group]
            numbers = {node: k for k, node in enumerate(dict.fromkeys(places))}
            node, on_node = Counter(places).most_common(1)[0]
            sharing = max(self._on_node[node] // on_node, 1)
            nodes = np.array([numbers[node] for node in places])
            machine = self._machine
            self._links[group] = Network(
                machine.far, machine.adding, machine.near, nodes=nodes, sharing=sharing
            )
        return self._links[group]

    def is_between_nodes(self, exchange: Exchange) -> bool:
        """True if the ranks of an exchange are on several nodes."""
        return self.links(exchange.group).node_count > 1

    def between_nodes(self, exchange: Exchange) -> float:
        """Returns the seconds that an exchange uses links between nodes; 0 on one node."""
        return self.is_between_nodes(exchange) * self.seconds(exchange)

    def _price(self, exchange: Exchange, links: Network) -> float:
        """Returns the seconds of one exchange: from a measured curve, or simulated."""
        p, nbytes = len(links.nodes), exchange.wire_bytes
        curve = self._machine.sums.get(curve_name(exchange.operation, _measured_as(exchange), p))
        if curve and links.node_count == 1:
            return curve.at(exchange.nbytes if exchange.algorithm in THROUGH_MEMORY else nbytes)
        if exchange.operation is Collective.MESSAGE:
            return _messages_seconds(links, nbytes / (p - 1))
        if exchange.operation is Collective.ALL_REDUCE and exchange.algorithm in THROUGH_MEMORY:
            return _two_level_seconds(links, exchange.nbytes, nbytes)
        if exchange.operation is Collective.NEIGHBOURS:
            return _neighbours_seconds(links, GRAPHS[exchange.algorithm](p), exchange.nbytes)
        plans = exchange.operation.algorithms
        if (
            exchange.algorithm == "ring" or exchange.algorithm not in plans
        ):  # of the library, or a user's
            return _ring_seconds(links, nbytes, exchange.operation)
        return price(plans[exchange.algorithm], p, nbytes, links).seconds


def _measured_as(exchange: Exchange) -> str:
    """Returns the name under which a machine file has an exchange's times: sums of gradients in
    shared memory have one of their own, since they work in place."""
    of_gradients = exchange.during is Kind.SUM and exchange.algorithm == "shared"
    return IN_PLACE if of_gradients else exchange.algorithm


def _messages_seconds(links: Network, nbytes: float) -> float:
    """Returns the seconds in which the first rank sends to each other rank in turn."""
    first, each = np.zeros(1, int), np.array([nbytes])
    others = np.arange(1, len(links.nodes))
    return sum(float(links.seconds(first, to, each)[0]) for to in others[:, None])


def _neighbours_seconds(links: Network, graph: Gossip, nbytes: float) -> float:
    """Returns the seconds in which every rank sends a buffer to its neighbours, all at once."""
    pairs = [(r, peers.to) for r in range(graph.replicas) for peers in graph.exchanges(r)]
    source, to = np.array(pairs).T
    seconds = links.seconds(source, to, np.full(len(pairs), float(nbytes)), len(graph.offsets))
    return float(seconds.max())


def _two_level_seconds(links: Network, nbytes: int, travelling: int) -> float:
    """Returns the seconds of a two-level all-reduce of `nbytes` bytes: the ranks of each node sum
    in shared memory, then one rank per node takes part in a ring, over which `travelling` bytes are
    summed (fewer if they are sent in a shorter type)."""
    inside = in_memory(links, int(np.bincount(links.nodes).max()), nbytes)
    leaders = links._replace(nodes=np.arange(links.node_count))
    return inside + (
        _ring_seconds(leaders, travelling, Collective.ALL_REDUCE) if links.node_count > 1 else 0.0
    )


def _ring_seconds(links: Network, nbytes: int, operation: Collective) -> float:
    """Returns the seconds of a ring: in every round all wait for the slowest link."""
    p = len(links.nodes)
    ranks, chunk = np.arange(p), nbytes / p
    slowest = float(links.seconds(ranks, (ranks + 1) % p, np.full(p, chunk)).max())
    passes = operation.passes
    return (p - 1) * (len(passes) * slowest + sum(passes) * links.gamma * chunk)
