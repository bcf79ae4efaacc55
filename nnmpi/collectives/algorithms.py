"""The collective algorithms of nnmpi as functions of round, rank and number of ranks.

An all-reduce is a reduction, such as a reduce-scatter, followed by its transpose: the same messages
backwards, which copy instead of adding.

p  ranks        r  this rank        t  round        d  distance to the partner
c  chunk        v  the number that a rank has among a power of two of the ranks
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Self, TypeAlias

import numpy as np

from nnmpi.collectives.bruck import all_to_all, bruck, pairwise, pat
from nnmpi.collectives.combine import (
    Shape,
    along,
    among,
    at_once,
    beside,
    factors,
    placed,
    swing,
    within,
)
from nnmpi.collectives.double_tree import double_tree
from nnmpi.collectives.dual_root import dual_root
from nnmpi.collectives.step import (
    Algorithm,
    Claim,
    Ranks,
    Step,
    chunk_per_rank,
    levels,
    one_chunk,
    only,
    reverse,
    then,
    transpose,
)


# Ring: each rank sends one chunk to the right and adds the chunk it receives from the left to its
# own. After p - 1 rounds rank r has the sum of chunk r.
#
#   p = 4, the chunk that is sent    0 -> 1   1 -> 2   2 -> 3   3 -> 0
#                           t = 0       3        0        1        2
#                               1       2        3        0        1
#                               2       1        2        3        0
#
# d is 1 to the right and -1 to the left. A transpose reverses messages, so the all-gather that
# sends to the right is the transpose of the ring to the left.
def _ring(d: int) -> Algorithm:
    def at(t: int, r: Ranks, p: Ranks) -> Step:
        out, into = (r - d * (t + 1)) % p, (r - d * (t + 2)) % p
        return Step((r + d) % p, (out, out + 1), (r - d) % p, (into, into + 1), True)

    return Algorithm(lambda p: p - 1, chunk_per_rank, at, lambda p: [p - 1])


ring, gather_ring = _ring(1), transpose(_ring(-1))


# Direct exchange: rank r owns chunk r and receives every other rank's part of it directly.
#
#   p = 4, who sends to whom         0      1      2      3
#                           t = 0    1      2      3      0
#                               1    2      3      0      1
#                               2    3      0      1      2
def _direct(t: int, r: Ranks, p: Ranks) -> Step:
    to = (r + t + 1) % p
    return Step(to, (to, to + 1), (r - t - 1) % p, (r, r + 1), True)


direct = Algorithm(lambda p: p - 1, chunk_per_rank, _direct)


# Binomial tree, from the leaves to rank 0; each message is the whole buffer.
#
#   p = 6    t = 0    0 <- 1   2 <- 3   4 <- 5
#                1    0 <- 2
#                2    0 <- 4
def _tree(t: int, r: Ranks, p: Ranks) -> Step:
    d = 1 << t
    leaf, root = r % (2 * d) == d, (r % (2 * d) == 0) & (r + d < p)
    return Step(only(leaf, r - d), (0, 1), only(root, r + d), (0, 1), True)


tree = Algorithm(levels, one_chunk, _tree)


# Parameter server: rank 0 receives the whole buffer of each other rank, one after the other.
def _server(t: int, r: Ranks, p: Ranks) -> Step:
    return Step(only(r == t + 1, 0), (0, 1), only(r == 0, t + 1), (0, 1), True)


server = Algorithm(lambda p: p - 1, one_chunk, _server)


# If p is not a power of two: with p = 2^k + extra, the odd ranks among the first 2 extra ranks send
# their buffer to their left neighbour and sit out. The other ranks are numbered by v:
#
#   p = 6, extra = 2     r    0   1   2   3   4   5
#                        v    0   -   1   -   2   3
#                   chunks   0,1     2,3      4   5     of the one or two ranks that v stands for
def _power(p: int) -> int:
    """The largest power of two that is at most p."""
    return 1 << (p.bit_length() - 1)


def _fold_rounds(p: int) -> int:
    """Returns the rounds of `fold`, which leaves a power of two of ranks: 1 or 0."""
    return int(p > _power(p))


def _fold(t: int, r: Ranks, p: int) -> Step:
    first = r < 2 * (p - _power(p))
    out, into = first & (r % 2 == 1), first & (r % 2 == 0)
    return Step(only(out, r - 1), (0, 1), only(into, r + 1), (0, 1), True)


fold = Algorithm(_fold_rounds, one_chunk, _fold)


def _hand_over(t: int, r: Ranks, p: int) -> Step:
    first = r < 2 * (p - _power(p))
    out, into = first & (r % 2 == 0), first & (r % 2 == 1)
    return Step(only(out, r + 1), (r + 1, r + 2), only(into, r - 1), (r, r + 1), False)


hand_over = Algorithm(_fold_rounds, chunk_per_rank, _hand_over)


def folded(a: Algorithm) -> Algorithm:
    """Makes an algorithm for any number of ranks from a, which needs a power of two. `fold` must
    run first: some ranks send their buffers to a neighbour, and wait meanwhile."""

    def at(t: int, r: Ranks, p: int) -> Step:
        extra = p - _power(p)
        takes_part = (r >= 2 * extra) | (r % 2 == 0)  # the others get a step too, masked by `only`
        s = a.at(t, np.where(r < 2 * extra, r // 2, r - extra), _power(p))

        def first(v: Ranks) -> Ranks:
            """Converts rank numbers of algorithm a to numbers among all p ranks; and a chunk of a
            to the first of its chunks among p.

            Each of the first `extra` ranks of a has received the buffer of the next rank, which
            does not run a. So rank v < extra of a is rank 2 v; later ones shift.
            """
            return v + np.minimum(v, extra)

        send, recv = ((first(lo), first(hi)) for lo, hi in (s.send, s.recv))
        return placed(s._replace(send=send, recv=recv), first, takes_part)

    return Algorithm(lambda p: a.rounds(_power(p)), chunk_per_rank, at)


# Recursive halving: partners at distance p/2, p/4, ... 1 exchange halves of the range of chunks
# that they still reduce; each keeps the half on its own side.
#
#   p = 4    t = 0    0 <-> 2    1 <-> 3    halves 0,1 and 2,3
#                1    0 <-> 1    2 <-> 3    quarters
def _halves(t: int, r: Ranks, p: int) -> Step:
    d = p >> (t + 1)
    base = r & ~(2 * d - 1)
    theirs, mine = base + ((r ^ d) & d), base + (r & d)
    return Step(r ^ d, (theirs, theirs + d), r ^ d, (mine, mine + d), True)


halving = then(fold, folded(Algorithm(levels, chunk_per_rank, _halves)))


# Recursive doubling: partners at distance 1, 2, 4, ... exchange their whole buffers.
def _doubles(t: int, r: Ranks, p: int) -> Step:
    d = 1 << t
    return Step(r ^ d, (0, p), r ^ d, (0, p), True)


doubling = then(fold, folded(Algorithm(levels, chunk_per_rank, _doubles)))


# Two levels: ranks q k to q k + q - 1 form a node, and the first of them is its leader.
def hierarchical(q: int) -> Algorithm:
    """On nodes of q ranks: trees to each node's first rank, a ring over these, and trees back."""
    up = within(tree, q)
    return then(then(up, leader_ring(q)), transpose(up))


def leader_ring(q: int) -> Algorithm:
    """A ring among the first ranks of nodes of q ranks, which share memory within."""
    return among(then(ring, gather_ring), lambda p: range(0, p, q))


def all_reduce(reduction: Algorithm) -> Algorithm:
    """Makes an all-reduce from a reduction (a reduce or a reduce-scatter): the reduction, then its
    transpose, which copies the sums back along the same paths."""
    return then(reduction, transpose(reduction))


# On a torus with D sides each rank has 2 D ports. The buffer is cut into 2 D parts; one part goes
# along each side first, in each direction. Without a shape, ranks form a ring with two ports.
def bucket(shape: Shape = ()) -> Algorithm:
    """Returns the bucket all-reduce of a torus whose sides have the lengths `shape`, or of one
    ring: ring reduce-scatters along one side after the other, then back; parts of the buffer start
    along different sides and in both directions at once."""
    sides = range(len(shape) or 1)
    return all_reduce(
        beside([along(_ring(d), lambda p: shape or (p,), i) for i in sides for d in (1, -1)])
    )


def swinging(shape: Shape = ()) -> Algorithm:
    """The Swing all-reduce of a torus with these sides, which must be powers of two; else, or
    without sides, the largest power of two of the ranks forms a ring, and the others `fold`."""
    if any(side != _power(side) for side in shape):
        shape = ()
    sides = range(len(shape) or 1)
    parts = [swing(lambda p: shape or (p,), i, turn) for i in sides for turn in (1, -1)]
    return then(then(fold, among(all_reduce(beside(parts)), _not_folded)), transpose(fold))


def _not_folded(p: int) -> list[int]:
    """Returns the ranks left when p ranks are folded to a power of two."""
    return [r for r in range(p) if r >= 2 * (p - _power(p)) or r % 2 == 0]


# Recursive multiplying with radix 4 (Ruefenacht et al., 2017), for long buffers: groups of four
# ranks exchange quarters of what they still reduce, each with the three others at once. With whole
# buffers, as published, four ranks would add four buffers in four orders, and their bits differ.
multiplying = all_reduce(along(at_once(direct, 3), factors))


# All-reduce: each rank starts with its own buffer; all end with the sum.
ALGORITHMS = {
    "ring": then(ring, gather_ring),
    "tree": then(tree, transpose(tree)),
    "ps": then(server, transpose(server)),
    "p2p": then(direct, transpose(direct)),
    "doubling": then(doubling, transpose(fold)),
    "halving": then(halving, transpose(halving)),
    "double-tree": all_reduce(double_tree),
    "dual-root": dual_root,
    "bruck": all_reduce(transpose(bruck)),
    "pat": all_reduce(transpose(pat())),
    "multiplying": multiplying,
    "bucket": bucket(),
    "swing": swinging(),
    "hierarchical": hierarchical(2),
}

# Reduce-scatter: rank r ends with the sum of chunk r; the rest of its buffer is undefined.
REDUCE_SCATTERS = {
    "ring": ring,
    "p2p": direct,
    "halving": then(halving, hand_over),
    "bruck": transpose(bruck),
    "pat": transpose(pat()),
}

# All-gather: rank r starts with chunk r; all end with all chunks.
ALL_GATHERS = {
    "ring": gather_ring,
    "p2p": transpose(direct),
    "halving": then(reverse(hand_over), transpose(halving)),
    "bruck": bruck,
    "pat": pat(),
}

# All-to-all: chunk c of rank r is for rank r + c, and in the end it is from rank r - c.
ALL_TO_ALLS = {"p2p": pairwise, "bruck": all_to_all}

# To rank 0, and from rank 0; `rooted` gives them another root.
REDUCES = {"tree": tree, "ps": server}
BROADCASTS = {"tree": transpose(tree), "ps": transpose(server)}


Starts: TypeAlias = Callable[[int, int], bool]
Ends: TypeAlias = Callable[[int, int, int], set[int] | None]


def _all(r: int, c: int) -> bool:
    return True


def _own(r: int, c: int) -> bool:
    return r == c


def _at_root(r: int, c: int) -> bool:
    return r == 0


def _sums(holds: Starts) -> Ends:
    """Returns the function `ends` of a Claim, the specification of a collective: each rank must end
    with the sum over all ranks of the chunks for which `holds(rank, chunk)` is True."""
    return lambda r, c, p: {*range(p)} if holds(r, c) else None


class Collective(Enum):
    """The collectives, such as ALL_REDUCE, with their algorithms; the last members have none.

    passes      the passes over the data: True for one that adds partial sums, else it copies
    algorithms  the algorithms of nnmpi by name, without those of users and of libraries
    claim       what each rank must hold at the start and at the end, if the root is rank 0
    """

    passes: tuple[bool, ...]
    algorithms: Mapping[str, Algorithm]
    claim: Claim

    ALL_REDUCE = "all_reduce", (True, False), ALGORITHMS, _all, _sums(_all)
    REDUCE_SCATTER = "reduce_scatter", (True,), REDUCE_SCATTERS, _all, _sums(_own)
    ALL_GATHER = "all_gather", (False,), ALL_GATHERS, _own, lambda r, c, p: {c}
    ALL_TO_ALL = "all_to_all", (False,), ALL_TO_ALLS, _all, lambda r, c, p: {(r - c) % p}
    BROADCAST = "broadcast", (False,), BROADCASTS, _at_root, lambda r, c, p: {0}
    REDUCE = "reduce", (True,), REDUCES, _all, _sums(_at_root)

    MESSAGE = "message", (False,)  # the buffer of one rank, for another
    NEIGHBOURS = "neighbours", (False,)  # the buffers of neighbours, for each
    GATHER_COUNTS = "gather_counts", (False,)  # integers of all, for all

    def __new__(
        cls,
        name: str,
        passes: tuple[bool, ...],
        algorithms: Mapping[str, Algorithm] = {},
        starts: Starts = _all,
        ends: Ends = lambda r, c, p: None,
    ) -> Self:
        """Makes a member whose value is its name, so that copies and pickles are the member."""
        row = object.__new__(cls)
        row._value_, row.passes, row.algorithms = name, passes, algorithms
        row.claim = Claim(starts, ends)
        return row

    @property
    def text(self) -> str:
        """The name as it is printed, such as all-reduce."""
        return str(self.value).replace("_", "-")
