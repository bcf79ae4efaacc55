"""Standing: how far each rank is that is left; Course: what all of them do next.

    rank 0   step 7 made and told         version 7   w 0..5 b 0..1   ─┐
    rank 2   step 7 made, told in part    version 7   w 5..9          ─┴─► step 7, what
    rank 3   in step 7                    version 6   w 0..9 b 0..1        follows again

It is a pure function of what all ranks have told, so all find the same.
"""

from collections.abc import Hashable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.recovery.holdings import Holding, newest
from nnmpi.run.run_state import Counters


class RunStage(IntEnum):
    """How far a rank is with its Trainer."""

    SETTING_UP = 0
    READY = 1
    RUNNING = 2


class Standing(NamedTuple):
    """How far a rank is that is left.

    number     of its session
    told       what it has told
    calling    the callback that was interrupted
    holds      what it has of the model; a spare rank has nothing
    counters   of the run, after the last step that it has noted
    results    that step, and the one in which a rank was lost, where they are known
    follows    whether what follows the last one that is known is not done yet
    callbacks  their names and states, where ranks are spare
    """

    stage: RunStage
    number: int
    told: Mapping[Hashable, int] = {}
    calling: Hashable | None = None
    holds: tuple[Holding, ...] = ()
    counters: Counters | None = None
    results: tuple[StepResult | None, ...] = ()
    follows: bool = False
    callbacks: tuple[tuple[str, Any], ...] = ()

    @property
    def step(self) -> int:
        """The steps that it has noted."""
        return self.counters.state.step if self.counters else 0


class Course(NamedTuple):
    """What all ranks that are left do next.

    stage       from which they go on
    source      what the next session is made of; None: what the first one was made of
    counters    of the run
    unfinished  the step of which not all is done yet that follows it
    told        what ranks that were spare take as told
    callbacks   the states that callbacks of these ranks take
    again       callbacks that are called once more, since one was interrupted, and their steps
    lacks       what nobody has any more, if so: a checkpoint may have it
    """

    stage: RunStage
    source: Holding | None = None
    counters: Counters | None = None
    unfinished: StepResult | None = None
    told: Mapping[Hashable, int] = {}
    callbacks: tuple[tuple[str, Any], ...] = ()
    again: tuple[tuple[Hashable, int], ...] = ()
    lacks: str = ""


def agreed(standings: Sequence[Standing]) -> Course:
    """What they do next."""
    stages = [one.stage for one in standings]
    workers = [one for one in standings if one.holds]
    if RunStage.SETTING_UP in stages:
        return Course(RunStage.SETTING_UP)
    if not workers:
        return Course(max(stages), lacks="no rank that is left has a part of the model")
    stage = max(one.stage for one in workers)
    furthest = max(one.step for one in workers)
    try:
        source = newest(chain.from_iterable(one.holds for one in workers))
    except ValueError as error:
        first = min(workers, key=_progress)
        lacks = str(error) if furthest else ""
        return Course(stage, None, first.counters, None, first.told, first.callbacks, lacks=lacks)
    version = source.version
    again = tuple({(one.calling, one.step) for one in workers if one.calling is not None})
    at = [one for one in workers if one.step == version]
    first = min(at or workers, key=_progress)
    assert first.counters is not None
    has_told = first.told, first.callbacks
    course = Course(stage, source, first.counters, None, *has_told, again)
    known = (one for one in chain.from_iterable(one.results for one in workers) if one is not None)
    last = next((one for one in known if one.state.step == version), None)
    if at:
        follows = first.follows or len(at) < len(workers)
        return course._replace(unfinished=last if follows else None)
    if version > furthest:  # no rank has noted the step, but some have finished it
        return course._replace(unfinished=last)
    counters = source.facts.counters._replace(changed=first.counters.changed)
    return course._replace(counters=counters)


def _progress(one: Standing) -> tuple[int, bool, bool]:
    """How far it is after its last step, of those that have begun the run: the end of an epoch
    clears its sums."""
    assert one.counters is not None
    return -one.stage, not one.follows, one.counters.sums.samples == 0
