"""What the ranks that are left go on from, against all that they could: of two ranks with any parts
of some versions."""

from collections.abc import Iterable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnmpi.metrics import Sums
from nnmpi.nn.place import Place, StateArray
from nnmpi.parallel.recovery.backup import Version
from nnmpi.parallel.step.executor import StepState
from nnmpi.run.recovery.rank_status import Decision, RankStatus, RunStage, agreed
from nnmpi.run.recovery.run_counters import Counters
from nnmpi.run.recovery.versions import VersionFacts, newest

SIZE = 4
PLACE = Place.of_whole("w", (SIZE,))
WHOLE = StateArray(PLACE, (0,), 0, SIZE, "float32")
PARTS = {0: (None, (0, 2), (0, SIZE)), 1: (None, (2, SIZE), (0, SIZE))}
"""By rank: what it may have of a version."""

Key = tuple[int, int, int]


def counters(step: int, **others: Any) -> Counters:
    plain = dict.fromkeys(Counters._fields)
    known = {"state": StepState(step), "sums": Sums(), "fit_calls": 1, "changed": {}}
    return Counters(**{**plain, **known, "restored": (), **others})


def version(at: Key, part: tuple[int, int], **others: Any) -> Version:
    step, session, renewal = at
    array = WHOLE._replace(lo=part[0], hi=part[1])
    head: Any = SimpleNamespace()
    return Version(step, [array], VersionFacts(head, counters(step, **others)), renewal, session)


def of_two(keys: Iterable[Key]) -> Iterator[tuple[list[Version], list[Version]]]:
    """Any parts that two ranks may have of these versions; the second has not done what follows the
    step."""
    choices = [[*product([at], PARTS[0], PARTS[1])] for at in keys]
    for chosen in product(*choices):
        first = [version(at, part) for at, part, _ in chosen if part]
        second = [version(at, part, unfollowed=True) for at, _, part in chosen if part]
        yield first, second


def key(one: Version | None) -> Key | None:
    return one and (one.version, one.session, one.renewal)


def whole(versions: Iterable[Version]) -> set[Key | None]:
    """The versions of which all elements are there."""
    there: dict[Key | None, np.ndarray] = {}
    for one in versions:
        for x in one.arrays:
            there.setdefault(key(one), np.zeros(SIZE, bool))[x.lo : x.hi] = True
    return {at for at, elements in there.items() if elements.all()}


def test_the_newest_version_is_that_of_which_all_is_there() -> None:
    for first, second in of_two([(3, 0, 1), (3, 0, 0), (3, 1, 0)]):
        found, missing = newest([*first, *second], [WHOLE])
        possible = whole([*first, *second])
        assert key(found) == max(possible, default=None)
        assert bool(missing) == (found is None and bool(first or second))
        if found is not None and any(key(one) == key(found) for one in second):
            assert found.about.counters.unfollowed, "what follows the step is not done again"


def test_a_step_is_made_only_where_without_it_less_is_whole() -> None:
    decisions: list[Decision | None] = [None, (3, (1.0,)), (2, (1.0,))]
    steps = 0
    for (first, second), decision, pending in product(
        [*of_two([(3, 0, 0), (2, 0, 0)])], decisions, product((None, 3), repeat=2)
    ):
        holds = [(*first,), (*second,)]
        if not all(holds):
            continue
        statuses = [
            RankStatus(
                *(RunStage.RUNNING, 0, counters(of_rank[0].version)),
                holds=of_rank,
                tensors=(WHOLE,),
                pending_version=step if of_rank[0].version == 2 else None,
                decision=decision,
            )
            for of_rank, step in zip(holds, pending, strict=True)
        ]
        plan = agreed(statuses)
        now = whole([*first, *second])
        made = [s.holds[0]._replace(version=3) for s in statuses if s.pending_version]
        then = whole([*first, *second, *made]) if decision == decisions[1] else now
        assert key(plan.source) == max(then, default=None)
        assert plan.makes_step == (max(then, default=None) != max(now, default=None))
        assert bool(plan.missing) == (plan.source is None)
        steps += plan.makes_step
    assert steps
