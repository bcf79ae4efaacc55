"""How long an exchange takes: from a measured curve on one node, else by simulation on its links.

All groups along an axis exchange at the same time. So the ranks of a node share its link to others:

    node 0  r0 r1 ══╗          dp 2 over two nodes, two groups:
    node 1  r2 r3 ══╝          r0, r2 and r1, r3 have half of the link each
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.collective import Collective
from nnmpi.collectives.price import Floats, price
from nnmpi.collectives.step import Algorithm, Ranks
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.exchanges import PLANS, Exchange
from nnmpi.parallel.planning.machine import Machine


def curve_name(operation: Collective, algorithm: str, ranks: int) -> str:
    """What a machine calls the seconds of a collective among so many ranks of a node."""
    return f"{operation.name.lower()} {algorithm} {ranks}"


class GroupLinks(NamedTuple):
    """The links of the ranks of one group, of which others use those between nodes, too.

    nodes    of each rank of the group
    sharing  groups that use the link of a node at the same time
    """

    machine: Machine
    nodes: tuple[int, ...]
    sharing: int

    @property
    def gamma(self) -> float:
        """Seconds to add a byte."""
        return self.machine.adding

    def seconds(self, source: Ranks, to: Ranks, nbytes: Floats) -> Floats:
        """The time of each message of one round."""
        near, far, nodes = self.machine.near, self.machine.far, np.asarray(self.nodes)
        a, b = nodes[source], nodes[to]
        out, into = (np.bincount(ends[a != b], minlength=nodes.max() + 1) for ends in (a, b))
        waiting = self.sharing * np.maximum(out[a], into[b])
        outside = far.alpha + waiting * nbytes * far.beta
        return np.where(a == b, near.alpha + nbytes * near.beta, outside)


class ExchangeTimes:
    """The seconds of exchanges on a cluster of such machines; each is found once."""

    def __init__(self, machine: Machine, cluster: Cluster) -> None:
        self._machine, self._cluster = machine, cluster
        self._on_node = Counter(cluster.nodes)
        self._of = cache(self._seconds)

    def seconds(self, one: Exchange) -> float:
        """Of one exchange, all its times together."""
        if len(one.group) == 1 or not one.times:
            return 0.0
        places = [self._cluster.nodes[r] for r in one.group]
        numbers = {node: k for k, node in enumerate(dict.fromkeys(places))}
        nodes = tuple(numbers[node] for node in places)
        node, here = Counter(places).most_common(1)[0]
        sharing = max(self._on_node[node] // here, 1)
        args = one.operation, one.algorithm, nodes, sharing, one.nbytes
        return one.times * self._of(*args)

    def is_between_nodes(self, one: Exchange) -> bool:
        """Whether some of its ranks share no memory."""
        return not self._cluster.on_one_node(one.group)

    def _seconds(
        self,
        operation: Collective,
        algorithm: str,
        nodes: tuple[int, ...],
        sharing: int,
        nbytes: int,
    ) -> float:
        """Of an exchange among ranks on these nodes."""
        p, machine = len(nodes), self._machine
        curve = machine.sums.get(curve_name(operation, algorithm, p))
        if curve and len({*nodes}) == 1:
            return curve.at(nbytes)
        links = GroupLinks(machine, nodes, sharing)
        if operation is Collective.MESSAGE:
            return float(links.seconds(np.array([0]), np.array([1]), np.array([nbytes]))[0])
        if operation is Collective.ALL_TO_ALL:
            each = np.full(p - 1, nbytes / (p - 1))
            return float(links.seconds(np.zeros(p - 1, int), np.arange(1, p), each).sum())
        if operation is Collective.ALL_REDUCE:
            return self._all_reduce(algorithm, links, nbytes)
        return _carried_out(PLANS[operation][algorithm], links, nbytes)

    def _all_reduce(self, algorithm: str, links: GroupLinks, nbytes: int) -> float:
        """Of an all-reduce: through the memory of a node first, where its algorithm does so."""
        if algorithm not in ("shared", "hierarchical"):
            return _carried_out(ALGORITHMS[algorithm], links, nbytes)
        there, near, gamma = Counter(links.nodes), links.machine.near, links.gamma
        q = max(there.values())
        inside = 2 * near.alpha + nbytes * (2 * near.beta + gamma * (q - 1)) if q > 1 else 0.0
        leaders = links._replace(nodes=tuple(range(len(there))))
        return inside + _carried_out(ALGORITHMS["ring"], leaders, nbytes)


def _carried_out(algorithm: Algorithm, links: GroupLinks, nbytes: int) -> float:
    """Of an algorithm, round by round."""
    return price(algorithm, len(links.nodes), nbytes, links).seconds


def total(times: ExchangeTimes, exchanges: Sequence[Exchange]) -> float:
    """Of exchanges that follow each other."""
    return sum(map(times.seconds, exchanges))
