"""Proves that a step computes what one rank would: that each gradient is the sum of all of its
terms, each once. What is due is derived from the model and from where its parts are alone."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from nnmpi.addons.proof.actions import Actions, PassesOf
from nnmpi.addons.proof.gradients import GradientWalk
from nnmpi.addons.proof.passes import check_passes
from nnmpi.addons.proof.placement import Placement
from nnmpi.addons.proof.shares import Shares
from nnmpi.addons.proof.together import check_counts, check_updates, check_weights
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.schedules.op import Op


def has_known_sums(a: Arrangement) -> bool:
    """True if `prove_sums` covers the step: if ranks sum their gradients in each step, with
    operations that no strategy has added."""
    return not (a.strategy.lists or a.strategy.averages or a.servers)


class ProvedStep(NamedTuple):
    """A proved step: what is due, and what each rank does."""

    shares: Shares
    ranks: Sequence[Actions]


def prove_sums(a: Arrangement, lists: Sequence[Sequence[Op]], passes: PassesOf) -> ProvedStep:
    """Returns the step if it is right; raises ScheduleError for the first operation of a rank that
    is wrong.

    lists    the operations of each rank
    passes   (rank, stage, samples): the exchanges that a stage's passes make, by kind of pass
    """
    shares, ranks = Shares(Placement(a)), list[Actions]()
    for rank, ops in enumerate(lists):
        actions = Actions(a, rank, ops, partial(passes, rank))
        GradientWalk(a, shares, actions).run()
        check_passes(shares, actions)
        ranks.append(actions)
    check_updates(a, shares, ranks)
    check_counts(a, shares, ranks)
    check_weights(a)
    return ProvedStep(shares, ranks)
