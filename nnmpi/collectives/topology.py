"""Topologies: the links that each message crosses.

`Topology.links(source, to)` takes two arrays with one entry per message. It returns an array with
one column per message: the numbers of its links, and NOBODY below if others cross more links.
Here are the links of nodes; an add-on has those of larger networks.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.collectives.step import Ranks

Links: TypeAlias = Callable[[Ranks, Ranks], Ranks]


class Topology(NamedTuple):
    """The links of a network (switches, or a torus) and which of them each message takes.

    text    the name of the topology, as `--network` takes it
    ranks   the largest number of ranks that it connects; rank i is at place i
    links   (senders, receivers): the numbers of the links that messages take
    width   (links): how many messages each carries at full speed; None: one each
    shape   the lengths of the sides of a torus; else empty
    node    the number of ranks in a node, if the topology describes nodes; else 0
    """

    text: str
    ranks: int
    links: Links
    width: Callable[[Ranks], Ranks] | None = None
    shape: tuple[int, ...] = ()
    node: int = 0


def crowd(links: Ranks, width: Callable[[Ranks], Ranks] | None = None) -> Ranks:
    """Returns by what factor sharing slows each message of a round: the messages on its most loaded
    link, by the link's width. `links` has a column for each message."""
    count = np.bincount(1 + links.ravel(), minlength=1)  # 0: NOBODY
    count[0] = 0
    sharing = count[1 + links] if width is None else count[1 + links] / width(links)
    return sharing.max(axis=0, initial=1)


def out_and_in(source: Ranks, to: Ranks) -> Ranks:
    """Returns links in a flat network: out of rank r by 2 r, into rank s by 2 s + 1."""
    return np.stack([2 * source, 2 * to + 1])


def through(near: Ranks, source: Ranks, to: Ranks, out: Ranks, into: Ranks) -> Ranks:
    """Returns the links of messages in a network of ranks in nodes: (2, messages).

    Where `near` is True it uses the links of the ranks `source` and `to`; otherwise it leaves by
    the outlet of node `out` and arrives by the inlet of node `into`.
    """
    first = 2 * (1 + max(source.max(initial=0), to.max(initial=0)))
    return np.where(near, out_and_in(source, to), first + out_and_in(out, into))
