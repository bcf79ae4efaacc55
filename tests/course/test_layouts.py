"""The questions of layouts: each has one clear best answer, and none is right for many students."""

from collections import Counter
from types import SimpleNamespace

import pytest

from classroom.check import checks_of
from classroom.situations import SITUATIONS, Numbers
from nnmpi.course import seed_of
from nnmpi.planning.search import Searcher

LAYOUTS = checks_of("layouts")
NAMES = [f"student {k}" for k in range(200)]

MOST = 0.15
"""The largest share of students for whom one answer may be right."""

MARGIN, MARGIN_OF_SEARCH = 1.15, 1.04
"""How much longer the fastest layout on any other mesh takes at least than the best one; more than
the checks allow, so that answers on one mesh alone are right."""

ANSWERS = (
    ((1, 2), (1, 2)),
    ((3, 1), (3, 1)),
    ((10, 1), (10, 1)),
    ((4, 1), (4, 1)),
    ((2, 2), (2, 2)),
    ((1, 1), (1, 1)),
    ((3, 3), (3, 3)),
    ((8, 1), (8, 1)),
    ((5, 1), (5, 1)),
    ((1, 3), (1, 3)),
    ((6, 1), (6, 1)),
    ((2, 1), (2, 1)),
    ((5, 2), (5, 2)),
    ((14, 1), (14, 1)),
)
"""The (tp, pp) of the fastest layout by hand and by search, of each situation."""


def numbers_of(number: int) -> Numbers:
    """The first student who has this situation."""
    students = (Numbers(seed_of(name)) for name in NAMES)
    return next(n for n in students if n.situation is SITUATIONS[number])


def test_no_answer_is_right_for_many_of_200_students() -> None:
    """By (tp, pp): an answer need not name dp, which follows from the ranks."""
    students = [Numbers(seed_of(name)) for name in NAMES]
    places = {situation: k for k, situation in enumerate(SITUATIONS)}
    assert len(ANSWERS) == len(places)
    for way in (0, 1):
        shares = Counter(ANSWERS[places[n.situation]][way] for n in students)
        print(shares.most_common())
        assert shares.most_common(1)[0][1] <= MOST * len(students)


def test_students_have_numbers_of_their_own() -> None:
    files = {tuple(LAYOUTS.files(seed_of(name)).values()) for name in NAMES}
    assert len(files) == len(NAMES)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_by_hand_one_mesh_is_clearly_the_fastest(number: int) -> None:
    numbers = numbers_of(number)
    found = dict[tuple[int, int], float]()
    for a, seconds in LAYOUTS.listed(LAYOUTS.models_of(numbers), numbers):
        found.setdefault((a.config.tp, a.config.pp), seconds)
        if len(found) == 2:
            break
    (best, seconds), (_, other) = found.items()
    assert best == ANSWERS[number][0]
    assert other / seconds >= MARGIN > LAYOUTS.BY_HAND


@pytest.mark.one_in(12)
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_by_search_one_mesh_is_clearly_the_fastest(number: int) -> None:
    numbers = numbers_of(number)
    models = LAYOUTS.models_of(numbers)
    best = Searcher(models.arranger, models.costs, numbers.memory).search(keep=10).best
    first, *others = [SimpleNamespace(mesh=p.layout.shape, time=p.time.seconds) for p in best]
    assert (best[0].layout.tp, best[0].layout.pp) == ANSWERS[number][1]
    longer = [other.time for other in others if other.mesh != first.mesh] or [others[-1].time]
    assert min(longer) / first.time >= MARGIN_OF_SEARCH > LAYOUTS.BY_SEARCH
