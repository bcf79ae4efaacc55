"""Collective algorithms with log p rounds for any p ranks: those of Bruck et al., and NCCL's PAT.

In round t a rank exchanges messages at distance d = 2^t, or in the opposite order.
"""

from nnmpi.collectives.step import Algorithm, Ranks, Step, chunk_per_rank, levels


# The all-gather: each rank sends what it has to the rank that is d before it; in the last round,
# only what that rank lacks.
#
#   p = 6, chunks that are sent      0    1    2    3    4    5
#               t = 0, d = 1         0    1    2    3    4    5
#                   1,     2        01   12   23   34   45   50
#                   2,     4        01   12   23   34   45   50
def _gather(t: int, r: Ranks, p: int) -> Step:
    d = 1 << t
    n, source = min(d, p - d), (r + d) % p
    return Step((r - d) % p, (r, r + n), source, (source, source + n), False)


bruck = Algorithm(levels, chunk_per_rank, _gather)


# PAT, the parallel aggregated trees of NCCL since 2.23 (Jeaugey, 2025), as an all-gather. Chunk c
# goes from rank c down a binomial tree, to ranks c + v: rank v of the tree has it from v - d, where
# d is the lowest bit of v. The farthest ranks come first, so long ways carry few chunks:
#
#   p = 8, what rank 0 sends      d = 4: 0      d = 2: 0 4      d = 1: 0 2 4 6
#
# A message has at most `most` chunks. When it is full, what is left of the trees follows in the
# order of v, depth first: a rank keeps few chunks for those below it.
def pat(most: int = 8) -> Algorithm:
    """The all-gather PAT of NCCL, whose messages have at most `most` chunks, a power of two (8 in
    NCCL). It takes log2(p) rounds, rounded up, on up to 2 * most ranks, and more on more ranks."""

    def apart(p: int) -> int:
        """Returns the distance of neighbouring chunks in a message of `most` chunks."""
        top = 1 << levels(p)
        return max(top // most, min(top, 2))

    def full(p: int) -> int:
        """Returns the number of rounds before messages have `most` chunks."""
        return levels(p) - levels(apart(p))

    def at(t: int, r: Ranks, p: int) -> Step:
        stride, v = apart(p), t - full(p) + 1
        d = v & -v
        if v <= 0:
            stride, v, d = 1 << (levels(p) - t), 0, 1 << (levels(p) - t - 1)
        first = max(v - d, 0)
        span = (p - 1 - d - first) // stride * stride
        out = (r - first - span) % p
        into = (out - d) % p
        ranges = (out, out + span + 1), (r - d) % p, (into, into + span + 1)
        return Step((r + d) % p, *ranges, False, stride=stride)

    return Algorithm(lambda p: full(p) + min(apart(p), p) - 1, chunk_per_rank, at)


# All-to-alls. Chunk c of rank r is for rank r + c, and in the end it is from rank r - c.
def _pairwise(t: int, r: Ranks, p: int) -> Step:
    d, chunk = t + 1, (t + 1, t + 2)
    return Step((r + d) % p, chunk, (r - d) % p, chunk, False, swap=True)


# Bruck's: each chunk travels the bits of its number, all chunks with bit t together.
#
#   p = 6, chunks that all send      d = 1: 1 3 5      d = 2: 2 3      d = 4: 4 5
def _all_to_all(t: int, r: Ranks, p: int) -> Step:
    d, chunks = 1 << t, (1 << t, p)
    return Step((r + d) % p, chunks, (r - d) % p, chunks, False, block=d, stride=2 * d, swap=True)


pairwise = Algorithm(lambda p: p - 1, chunk_per_rank, _pairwise)
all_to_all = Algorithm(levels, chunk_per_rank, _all_to_all)
