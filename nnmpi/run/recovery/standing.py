"""Standing: how far each rank is that is left; Course: what all of them do next.

    rank 0   step 7 made and told         version 7   w 0..5 b 0..1   ─┐
    rank 2   step 7 made, told in part    version 7   w 5..9          ─┴─► from version 7, what follows
    rank 3   in step 7                    version 6   w 0..9 b 0..1        step 7 once more

It is a pure function of what all ranks have told, so all find the same.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from math import prod
from typing import NamedTuple

from nnmpi.config import Config
from nnmpi.metrics import Sums
from nnmpi.nn.place import Part, whole
from nnmpi.parallel.model.moves import MovedTensor, TensorRange, plan_moves
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
    session: int
    tensors: tuple[MovedTensor, ...]
    ranges: tuple[tuple[str, Part, int, int], ...]
    head: Snapshot

    @property
    def key(self) -> tuple[int, int]:
        """Holdings with one key belong together."""
        return self.version, self.session


class Standing(NamedTuple):
    """How far a rank is that is left.

    config     how ranks were to be arranged, before any was lost; None: this rank knows nothing
    is_set_up  whether it has data
    counters   of the run, after the last step that it has noted
    result     that step
    follows    whether what follows that step is not done yet
    calling    the callback that was interrupted
    holds      what it has of the model
    """

    stage: Stage
    config: Config | None
    is_set_up: bool
    counters: Counters | None = None
    result: StepResult | None = None
    follows: bool = False
    calling: Hashable | None = None
    holds: tuple[Holding, ...] = ()


class Course(NamedTuple):
    """What all ranks that are left do next.

    stage       from which they go on
    config      how ranks were to be arranged, before any was lost
    source      what the next session is made of; None: of initial values
    counters    of the run
    unfinished  the step of which not all is done yet that follows it
    again       callbacks that are called once more, since one was interrupted
    steps_again   how many steps are made again
    """

    stage: Stage
    config: Config
    source: Holding | None = None
    counters: Counters | None = None
    unfinished: StepResult | None = None
    again: tuple[Hashable, ...] = ()
    steps_again: int = 0


def agreed(standings: Sequence[Standing]) -> Course:
    """What they do next; raises NothingLeftError where the ranks that are left lack numbers."""
    stage = max(one.stage for one in standings)
    config = next(one.config for one in standings if one.config is not None)
    workers = [one for one in standings if one.stage != Stage.SETTING_UP and one.holds]
    if not workers or any(one.stage == Stage.SETTING_UP and one.config for one in standings):
        return Course(Stage.SETTING_UP, config)
    source = _newest(workers)
    furthest = max(_steps(one) for one in workers)
    at = [one for one in workers if _steps(one) == source.version]
    again = tuple({one.calling for one in at if one.calling is not None})
    if not at:  # a version that nobody has noted, or an older one
        counters = workers[0].counters
        return Course(stage, config, source, counters, None, (), furthest - source.version)
    first = min(at, key=_progress)
    follows = len(at) < len(workers) or any(one.follows for one in at)
    unfinished = first.result if follows else None
    return Course(stage, config, source, first.counters, unfinished, again, 0)


def _steps(one: Standing) -> int:
    return one.counters.state.step if one.counters else 0


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
