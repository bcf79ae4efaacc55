"""Lower bounds on when the ranks of a pipeline begin and end their passes, by formulas.

The first forward pass of a rank follows one in each stage before it; its last backward pass is
followed by one in each stage before it (in ZB-H1 by I, the gradients of inputs, and then by W,
those of weights).
"""

from typing import NamedTuple

import numpy as np

from nnmpi.addons.planning.candidate import Candidate


class RankEnds(NamedTuple):
    """Lower bounds on the times of each rank along pp, in seconds: arrays of shape (pp,).

    start  until its first pass begins
    busy   spent in all of its passes
    end    until its last backward pass ends, which waits for those of later stages
    last   of passes that follow when a stage's gradients are complete, while they are summed
    """

    start: np.ndarray
    busy: np.ndarray
    end: np.ndarray
    last: np.ndarray


def rank_ends(candidate: Candidate, passes: np.ndarray, count: int) -> RankEnds:
    """Bounds when each rank along pp begins and ends its passes of `count` micro-batches; `passes`
    is (stages, 3): F, B, I."""
    stages = passes.reshape(-1, candidate.pp, 3)
    forward, backward, _ = stages.sum(axis=0).T
    f, b, i = stages[0].T  # of the first stage of each rank
    # a rank starts after one forward pass of each stage before it; when it has ended, each of
    # them has a backward pass left
    start, behind, gradients = (np.cumsum(t) - t for t in (f, b, i))
    again = np.zeros_like(forward)
    if candidate.recompute == "stage" and count > 1:  # not on the last rank, which may not wait
        again[:-1] = forward[:-1]
    busy = count * (forward + backward + again)
    if candidate.schedule != "zb-h1":
        ended = np.maximum.accumulate((start + busy + behind)[::-1])[::-1] - behind
        # behind the last backward pass of a stage come those of others on the rank
        others = min(count, candidate.pp) if len(stages) > 1 else 1
        last = others * (backward + (again if len(stages) > 1 else 0))
        return RankEnds(start, busy, ended, last)
    # rank r runs W after r more Is: its last I is behind all but r + 1 of them
    left = np.minimum(np.arange(1, candidate.pp + 1), count)
    w = b - i
    sent = start + count * (f + i) + (count - left) * w + gradients
    ended = np.maximum.accumulate(sent[::-1])[::-1] - gradients + left * w
    return RankEnds(start, busy, np.maximum(start + busy, ended), backward)
