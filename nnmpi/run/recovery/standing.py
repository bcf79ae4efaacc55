"""Standing: how far each rank is that is left; Course: what all of them do next.

    rank 0   step 7 made and told         version 7   w 0..5 b 0..1   ─┐
    rank 2   step 7 made, told in part    version 7   w 5..9          ─┴─► step 7, what
    rank 3   in step 7                    version 6   w 0..9 b 0..1        follows again

It is a pure function of what all ranks have told, so all find the same.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from math import prod
from typing import NamedTuple

from nnmpi.nn.place import Part, whole
from nnmpi.parallel.model.moves import MovedTensor, TensorRange
from nnmpi.parallel.model.nearest import plan_moves
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.run_state import Counters
from nnmpi.run.snapshot import Snapshot


class NothingLeftError(AgreedError):
    """Ranks are lost, and with them what nobody else has."""


class Stage(IntEnum):
    """How far a rank is with its Trainer."""

    SETTING_UP = 0
    READY = 1
    RUNNING = 2


class Holding(NamedTuple):
    """What a rank has after so many steps.

    version   the number of these steps
    session   the number of the session that it is from
    tensors   of the whole model
    ranges    that this rank has
    head      its snapshot, without the arrays
    """

    version: int
    session: tuple[int, int]
    tensors: tuple[MovedTensor, ...]
    ranges: tuple[tuple[str, Part, int, int], ...]
    head: Snapshot

    @property
    def key(self) -> tuple[int, tuple[int, int]]:
        """Holdings with one key belong together."""
        return self.version, self.session


class Standing(NamedTuple):
    """How far a rank is that is left.

    told       what it has told
    calling    the callback that was interrupted
    holds      what it has of the model; a spare rank has nothing
    counters   of the run, after the last step that it has noted
    result     that step
    follows    whether what follows that step is not done yet
    """

    stage: Stage
    told: Mapping[Hashable, int] = {}
    calling: Hashable | None = None
    holds: tuple[Holding, ...] = ()
    counters: Counters | None = None
    result: StepResult | None = None
    follows: bool = False

    @property
    def step(self) -> int:
        """The steps that it has noted."""
        return self.counters.state.step if self.counters else 0


class Course(NamedTuple):
    """What all ranks that are left do next.

    stage       from which they go on
    source      what the next session is made of; None: of initial values
    counters    of the run
    unfinished  the step of which not all is done yet that follows it
    told        what ranks that were spare take as told
    again       callbacks that are called once more, since one was interrupted, and their steps
    steps_again   how many steps are made again
    """

    stage: Stage
    source: Holding | None = None
    counters: Counters | None = None
    unfinished: StepResult | None = None
    told: Mapping[Hashable, int] = {}
    again: tuple[tuple[Hashable, int], ...] = ()
    steps_again: int = 0


def agreed(standings: Sequence[Standing]) -> Course:
    """What they do next; raises NothingLeftError where the ranks that are left lack numbers."""
    stages = [one.stage for one in standings]
    workers = [one for one in standings if one.holds]
    if Stage.SETTING_UP in stages or not workers:
        return Course(Stage.SETTING_UP)
    source = _newest(workers)
    again = tuple({(one.calling, one.step) for one in workers if one.calling is not None})
    at = [one for one in workers if one.step == source.version]
    first = min(at or workers, key=_progress)
    course = Course(max(stages), source, first.counters, None, first.told, again)
    if not at:  # an older version, that of a backup
        assert first.counters is not None
        furthest = max(one.step for one in workers)
        counters = first.counters.back_to(source.head)
        return course._replace(counters=counters, steps_again=furthest - source.version)
    if len(at) < len(workers) or first.follows:
        course = course._replace(unfinished=first.result)
    return course


def _progress(one: Standing) -> tuple[bool, bool]:
    """How far it is after its last step: the end of an epoch clears its sums."""
    assert one.counters is not None
    return not one.follows, one.counters.sums.samples == 0


def _newest(standings: Iterable[Standing]) -> Holding:
    """The newest version of which the ranks together have everything."""
    holdings = [*chain.from_iterable(one.holds for one in standings)]
    lacks = ""
    for key in sorted({one.key for one in holdings}, reverse=True):
        there = [one for one in holdings if one.key == key]
        try:
            _check(there)
        except ValueError as error:
            lacks = lacks or str(error)
        else:
            return there[0]
    raise NothingLeftError(lacks)


def _check(holdings: Sequence[Holding]) -> None:
    """Raises ValueError unless they make up the model, each number at least once."""
    tensors = holdings[0].tensors
    numbers = {tensor.path: i for i, tensor in enumerate(tensors)}
    have = {
        TensorRange(numbers[path], 0, 0, lo, hi, part)
        for one in holdings
        for path, part, lo, hi in one.ranges
    }
    need = [
        TensorRange(i, 0, 0, 0, prod(one.shape), whole(one.shape)) for i, one in enumerate(tensors)
    ]
    plan_moves(tensors, have, need, [0])
