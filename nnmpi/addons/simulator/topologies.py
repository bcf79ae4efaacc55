"""Topologies by name: fat trees, tori, dragonflies, and nodes on rails.

torus:4x4, ranks 4 to 6: links 4 -> 5, 5 -> 6      fat-tree:4, ranks 0 to 4, of two pods:
                                                   0 up, its switch up, its pod up, then down
"""

from math import prod

import numpy as np

from nnmpi.collectives.step import NOBODY, Ranks
from nnmpi.collectives.topology import Topology, out_and_in, through


def fat_tree(k: int, oversubscription: float = 1) -> Topology:
    """A fat tree of switches with k ports (Al-Fares et al., 2008): k/2 ranks a switch, k/2 switches
    a pod, k pods. Messages spread evenly over the links that lead up, of which a switch has 1 /
    `oversubscription` times those that lead down."""
    half, n = k // 2, k**3 // 4
    if k < 2 or k % 2 or not 1 <= oversubscription <= half:
        raise ValueError(
            f"a fat tree of {k} ports, oversubscribed {oversubscription:g}-fold, does not exist: "
            f"take an even number of ports from 2, and a factor from 1 to {max(half, 1)}"
        )
    switches = n // half
    per_pod = half * half

    def links(source: Ranks, to: Ranks) -> Ranks:
        a, b = source // half, to // half
        i, j = source // per_pod, to // per_pod
        switch, pod = 2 * n + out_and_in(a, b), 2 * (n + switches) + out_and_in(i, j)
        far = np.where(a != b, switch, NOBODY), np.where(i != j, pod, NOBODY)
        return np.concatenate([out_and_in(source, to), *far])

    def width(links: Ranks) -> Ranks:
        up = np.where(links < 2 * (n + switches), half, per_pod) / oversubscription
        return np.where(links < 2 * n, 1, up)

    more = f":{oversubscription:g}" * (oversubscription != 1)
    return Topology(f"fat-tree:{k}{more}", n, links, width)


def torus(shape: tuple[int, ...]) -> Topology:
    """A torus: each rank has a link to both neighbours along each side. Messages go along the last
    side first, in the shorter direction round it, or to higher ranks if both are equally long."""
    if min(shape) < 1:
        raise ValueError(f"a torus has no side of {min(shape)} ranks: take sides from 1")
    sides = len(shape)

    def links(source: Ranks, to: Ranks) -> Ranks:
        at, columns = np.asarray(source), []
        for i in reversed(range(sides)):
            side, stride = shape[i], prod(shape[i + 1 :])
            ahead = (to // stride - at // stride) % side
            down = 2 * ahead > side
            step = np.where(down, -1, 1)
            hops = np.minimum(ahead, side - ahead)
            for hop in range(int(hops.max(initial=0))):
                crosses = hop < hops
                columns.append(np.where(crosses, (at * sides + i) * 2 + down, NOBODY))
                x = at // stride % side
                at = np.where(crosses, at + ((x + step) % side - x) * stride, at)
        return np.stack(columns) if columns else np.full((1, len(source)), NOBODY)

    text = f"torus:{'x'.join(map(str, shape))}"
    # sides of one rank have no links, so algorithms use no port for them
    return Topology(text, prod(shape), links, shape=tuple(side for side in shape if side > 1))


def dragonfly(a: int, g: int, h: int) -> Topology:
    """A dragonfly (Kim et al., 2008): g groups of a routers, each with h ranks and h global links.

    Every two routers of a group share a link, and every two groups a h / (g - 1) links. Messages
    take the shortest path. The ranks of a router take the links to another group in turn.
    """
    if min(a, g, h) < 1 or a * h < g - 1:
        raise ValueError(
            f"{g} groups of {a} routers with {h} global links each cannot all be joined: a group "
            f"needs a link to each of the {g - 1} others"
        )
    n, between = a * g * h, a * h // max(g - 1, 1)

    def links(source: Ranks, to: Ranks) -> Ranks:
        (s, t), (i, j) = (source // h, to // h), (source // (a * h), to // (a * h))
        turn = source % between
        out = (j - i - 1) % g * between + turn  # the global link, as its group numbers it
        into = (i - j - 1) % g * between + turn
        gate, exit_ = i * a + out // h, j * a + into // h
        far = i != j

        def local(x: Ranks, y: Ranks) -> Ranks:
            return np.where(x != y, 2 * n + x * a + y % a, NOBODY)

        first = local(s, np.where(far, gate, t))
        last = np.where(far, local(exit_, t), NOBODY)
        across = np.where(far, 2 * n + g * a * a + i * a * h + out, NOBODY)
        return np.concatenate([out_and_in(source, to), [first, across, last]])

    return Topology(f"dragonfly:{a},{g},{h}", n, links)


def rails(q: int, most: int) -> Topology:
    """Nodes of q ranks, at most `most` ranks in all, and q rails: rail i is a switch between the
    ranks i of all nodes. A message goes first to the rank of the sender's node that is on the
    receiver's rail, as in NCCL's PXN."""
    if q < 1:
        raise ValueError(f"a node has no {q} rails: take a number from 1")

    def links(source: Ranks, to: Ranks) -> Ranks:
        gate = source // q * q + to % q
        return through(source // q == to // q, source, to, gate, to)

    return Topology(f"rails:{q}", most, links, node=q)
