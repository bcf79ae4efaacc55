"""The representation of a collective algorithm: in each round, who sends which chunks to whom.

A buffer of n elements is cut into `chunks` pieces, and a range (lo, hi) means pieces lo..hi-1. A
range that goes past the last piece goes on at the first: of 4 pieces, (3, 5) means pieces 3 and 0.
`Algorithm.at(t, r, p)` is the step of rank r of p in round t. It is plain arithmetic, so r may be
one rank (to run the algorithm) or `arange(p)` (to prove, price or draw it).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.options.quoting import quoted
from nnmpi.options.user_code import reason_of

Ranks: TypeAlias = Any  # an int or an array of them; NumPy's scalars and ndarrays share no type
ChunkRange: TypeAlias = tuple[Ranks, Ranks]
Pieces: TypeAlias = tuple[tuple[int, int], ...]  # ranges of chunks that do not go past the last

NOBODY = -1
UNPACKED = 2  # pieces that are sent as they are; a message of more of them is packed first

# words in NumPy's errors for an array in place of a number or a condition
_NEEDS_ONE_NUMBER = ("truth value of an array", "can be converted to")
_BRANCHES = (
    "at(t, r, p) of the algorithm branches on r, which is an array of all ranks when a plan is "
    "proved, priced or drawn: write only(condition, peer) or np.where(condition, a, b) instead of "
    "`if`, and write & and | instead of `and` and `or`"
)


class PlanError(ValueError):
    """Raised for a collective algorithm that is malformed, or does not do what its `Claim` says."""


class Step(NamedTuple):
    """The two messages of a rank in a round, one that it sends and one that it receives.

    A rank that sends several messages at once makes several steps in a round, one for each port.

    to          the rank that it sends to; NOBODY: it sends nothing
    send        the chunks that it sends: (2, 4) means chunks 2 and 3
    source      the rank that it receives from; NOBODY: it receives nothing
    recv        the chunks that it receives, in the same form
    reduce      True: chunks that arrive are added; False: they replace the rank's own
    port        the number of this step among the steps of its round
    ports       the number of steps of its round: of messages that a rank sends at once
    block       the step takes only the first `block` of every `stride` chunks of its ranges
    stride      with block 1 and stride 2, the range (1, 6) means chunks 1, 3 and 5
    swap        True: chunks that arrive may replace those that the rank sends in this round

    The fields after `recv` are the same on all ranks. All messages of a round are in flight at the
    same time: a rank sends the values that it held before the round.
    """

    to: Ranks
    send: ChunkRange
    source: Ranks
    recv: ChunkRange
    reduce: bool
    port: int = 0
    ports: int = 1
    block: int = 1
    stride: int = 1
    swap: bool = False

    def count(self, range_: ChunkRange) -> Ranks:
        """Returns how many chunks of a range move: all, or as `block` and `stride` say."""
        periods, rest = np.divmod(range_[1] - range_[0], self.stride)
        return periods * self.block + np.minimum(rest, self.block)

    def sends(self, chunks: int) -> tuple[Pieces, ...]:
        """Returns the messages that a rank sends, each a tuple of chunk ranges."""
        return self._messages(self.send, chunks) if self.to >= 0 else ()

    def messages(self, chunks: int) -> Ranks:
        """How many messages each rank sends; a range that is not contiguous may be several."""
        start, length = self.send[0] % chunks, np.asarray(self.send[1] - self.send[0])
        width = np.where(self.block < self.stride, self.block, length)
        period = np.maximum(width, self.stride)
        parts = blocks = -(-length // period)
        for k in range(UNPACKED):  # a block that goes past the last chunk has two parts
            end = (start + k * period) % chunks + np.minimum(width, length - k * period)
            parts = parts + ((k < blocks) & (end > chunks))
        return np.where(np.asarray(self.to) >= 0, np.where(parts > UNPACKED, 1, parts), 0)

    def receives(self, chunks: int) -> tuple[Pieces, ...]:
        """Returns the messages that a rank receives, each a tuple of chunk ranges."""
        return self._messages(self.recv, chunks) if self.source >= 0 else ()

    def is_aside(self, message: Pieces) -> bool:
        """True if a received message goes to scratch memory first: it is added, has several pieces,
        or the buffer is still being sent."""
        return bool(self.reduce or self.swap or len(message) > 1)

    def _messages(self, range_: ChunkRange, chunks: int) -> tuple[Pieces, ...]:
        """Returns the messages in which a range of chunks is sent, each as a tuple of contiguous
        pieces: a few are one message each, many are packed into a single message."""
        lo, hi = int(range_[0]), int(range_[1])
        width = self.block if self.block < self.stride else hi - lo
        parts = list[tuple[int, int]]()
        for first in range(lo, hi, max(width, self.stride)):
            start, end = first % chunks, first % chunks + min(width, hi - first)
            parts += [(start, min(end, chunks)), (0, end - chunks)][: 1 + (end > chunks)]
        return tuple((part,) for part in parts) if len(parts) <= UNPACKED else (tuple(parts),)

    def moved(self, base: Ranks, size: int = 1) -> "Step":
        """Returns the step for a buffer with `size` chunks, from base + c * size, for chunk c."""
        send, recv = ((base + lo * size, base + hi * size) for lo, hi in (self.send, self.recv))
        return self._replace(
            send=send, recv=recv, block=self.block * size, stride=self.stride * size
        )


class Algorithm(NamedTuple):
    """A collective algorithm: functions of the number of ranks p.

    rounds(p)     the number of steps, which is the number of rounds if a rank sends one message at
                  a time (has one port)
    chunks(p)     the number of chunks of the buffer
    at(t, r, p)   step t of rank r
    runs(p)       the lengths of runs of rounds with the same senders, receivers and numbers of
                  chunks, for each of which `price` computes one round; None: it computes all
    one_way       some ranks only send (see `rooted`)

    `at` is array arithmetic (`only`, `np.where`, no `if`): one call may compute all ranks' steps.
    """

    rounds: Callable[[int], int]
    chunks: Callable[[int], int]
    at: Callable[[int, Ranks, Ranks], Step]
    runs: Callable[[int], list[int]] | None = None
    one_way: bool = False

    def steps(self, r: Ranks, p: int) -> Iterator[Step]:
        """Yields the steps of rank r (or of every rank in r), round by round; raises PlanError if
        `at` fails or does not return a Step."""
        of_rank = "" if np.ndim(r) else f" for rank {r}"
        for t in range(self.rounds(p)):
            try:
                step = self.at(t, r, p)
            except Exception as error:
                branches = any(words in str(error) for words in _NEEDS_ONE_NUMBER)
                fault = _BRANCHES if branches else f"at(t, r, p) ends with {reason_of(error)}"
                raise PlanError(f"round {t}{of_rank}: {fault}") from error
            if not isinstance(step, Step):
                raise PlanError(
                    f"round {t}{of_rank}: at(t, r, p) returns {quoted(step)}; return a Step"
                )
            yield step


class Claim(NamedTuple):
    """The specification of a collective: what each rank holds of each chunk.

    starts(rank, chunk)   True if the rank has its own contribution to the chunk at the start
    ends(rank, chunk, p)  the ranks whose contributions it must have summed at the end; None: any
    """

    starts: Callable[[int, int], bool]
    ends: Callable[[int, int, int], set[int] | None]


def levels(p: int) -> int:
    """log2(p) rounded up: the depth of a binary tree over p ranks."""
    return (p - 1).bit_length()


def one_chunk(p: int) -> int:
    """Returns 1: the number of chunks of an algorithm that does not cut the buffer."""
    return 1


def chunk_per_rank(p: int) -> int:
    """Returns p: the number of chunks of an algorithm with one chunk per rank."""
    return p


def in_rounds(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Yields the steps of each round, one for each message sent at once."""
    ports = list[Step]()
    for step in steps:
        ports.append(step)
        if len(ports) >= step.ports:
            yield ports
            ports = []


def chunk_start(n: int, chunks: int, i: int) -> int:
    """The first element of chunk i of n elements; lengths of chunks differ by at most one."""
    return n * i // chunks


@lru_cache(1024)
def bounds(n: int, chunks: int) -> tuple[int, ...]:
    """The first element of each chunk of n elements, and n itself at the end."""
    return tuple(chunk_start(n, chunks, i) for i in range(chunks + 1))


def only(condition: Any, peer: Ranks) -> NDArray[np.int_]:
    """Returns the peer where the condition holds, else NOBODY."""
    return np.where(condition, peer, NOBODY)


def per_rank(step: Step, p: int) -> list[Step]:
    """Splits a step of all p ranks into one per rank, of plain integers."""
    fields = (step.to, *step.send, step.source, *step.recv)
    columns = [np.broadcast_to(np.asarray(x), p).tolist() for x in fields]
    return [
        Step(to, (lo, hi), source, (into_lo, into_hi), *step[4:])
        for to, lo, hi, source, into_lo, into_hi in zip(*columns, strict=True)
    ]


def reverse(a: Algorithm) -> Algorithm:
    """Algorithm a with all messages in the opposite direction, last round first."""

    def at(t: int, r: Ranks, p: Ranks) -> Step:
        s = a.at(a.rounds(p) - 1 - t, r, p)
        s = s._replace(to=s.source, send=s.recv, source=s.to, recv=s.send)
        return s._replace(port=s.ports - 1 - s.port)

    runs = a.runs
    return Algorithm(a.rounds, a.chunks, at, runs and (lambda p: runs(p)[::-1]))


def transpose(a: Algorithm) -> Algorithm:
    """The reverse of algorithm a, with adding and overwriting exchanged.

    An algorithm is a linear map from the buffers of all ranks before to their buffers after, and
    this is its transpose: of a reduction a broadcast, of a reduce-scatter an all-gather.
    """

    reversed_ = reverse(a)

    def at(t: int, r: Ranks, p: Ranks) -> Step:
        s = reversed_.at(t, r, p)
        return s._replace(reduce=not s.reduce)

    return reversed_._replace(at=at)


def then(a: Algorithm, b: Algorithm) -> Algorithm:
    """Algorithm a followed by b, on a buffer cut into chunks that are fine enough for both."""

    def chunks(p: int) -> int:
        return lcm(a.chunks(p), b.chunks(p))

    def at(t: int, r: Ranks, p: int) -> Step:
        n = a.rounds(p)
        part, s = (a, a.at(t, r, p)) if t < n else (b, b.at(t - n, r, p))
        return s.moved(0, chunks(p) // part.chunks(p))

    first, second = a.runs, b.runs
    runs = (lambda p: first(p) + second(p)) if first and second else None
    return Algorithm(lambda p: a.rounds(p) + b.rounds(p), chunks, at, runs)
