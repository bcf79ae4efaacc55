"""The questions of layouts: each has one clear best answer, which is right for few students, and
which the formula of the README finds if no term is left out."""

from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from helpers.layouts_by_hand import RIGHT, WRONG, Layout, Student, Way

from classroom.check import checks_of
from classroom.situations import SITUATIONS, Numbers
from nnmpi.addons.course.command import seed_of
from nnmpi.addons.planning.search import Searcher

LAYOUTS = checks_of("layouts")
NAMES = [f"student {k}" for k in range(200)]

MOST = 0.15
"""The largest share of students for whom one answer may be right."""

MARGIN, MARGIN_OF_SEARCH = 1.15, 1.04
"""How much longer the fastest layout on any other mesh takes at least than the best one; more than
the checks allow, so that answers on one mesh alone are right."""

CLEAR = 1.05
"""The same by hand, for each right way to write the formula."""


class Answer(NamedTuple):
    """The fastest layout of a situation: (tp, pp), by hand and by search, and the numbers of
    micro-batches that are right by hand."""

    mesh: tuple[int, int]
    micro: tuple[int, ...] = (1,)


ANSWERS = (
    Answer((1, 1)),
    Answer((2, 2), (2,)),
    Answer((2, 4), (2,)),
    Answer((4, 4), (2,)),
    Answer((4, 1)),
    Answer((8, 1)),
    Answer((16, 1)),
    Answer((12, 1)),
    Answer((6, 1)),
    Answer((3, 2), (2,)),
    Answer((1, 2), (2, 4)),
    Answer((1, 4), (4, 8)),
)


def numbers_of(number: int) -> Numbers:
    """The first student who has this situation."""
    students = (Numbers(seed_of(name)) for name in NAMES)
    return next(n for n in students if n.situation is SITUATIONS[number])


def test_no_answer_is_right_for_many_of_200_students() -> None:
    """By (tp, pp): an answer need not name dp, which follows from the ranks."""
    students = [Numbers(seed_of(name)) for name in NAMES]
    places = {situation: k for k, situation in enumerate(SITUATIONS)}
    assert len(ANSWERS) == len(places)
    shares = Counter(ANSWERS[places[n.situation]].mesh for n in students)
    print(shares.most_common())
    assert shares.most_common(1)[0][1] <= MOST * len(students)


def test_students_have_numbers_of_their_own() -> None:
    files = {tuple(LAYOUTS.files(seed_of(name)).values()) for name in NAMES}
    assert len(files) == len(NAMES)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_by_hand_one_mesh_is_clearly_the_fastest(number: int) -> None:
    numbers = numbers_of(number)
    found = [
        ((a.config.tp, a.config.pp), a.config.micro_batches, seconds)
        for a, seconds in LAYOUTS.listed(LAYOUTS.models_of(numbers), numbers)
    ]
    (best, _, least), answer = found[0], ANSWERS[number]
    assert best == answer.mesh
    allowed = {micro for mesh, micro, t in found if mesh == best and t <= LAYOUTS.BY_HAND * least}
    assert allowed == {*answer.micro}
    other = min(seconds for mesh, _, seconds in found if mesh != best)
    assert other / least >= MARGIN > LAYOUTS.BY_HAND


def answered(number: int, layout: Layout) -> bool:
    answer = ANSWERS[number]
    return (layout.tp, layout.pp) == answer.mesh and layout.micro in answer.micro


@pytest.mark.parametrize("way", RIGHT.values(), ids=RIGHT)
def test_each_right_way_to_write_the_formula_finds_all_answers(way: Way) -> None:
    for number in range(len(ANSWERS)):
        found, margin = Student(numbers_of(number)).best(way)
        assert answered(number, found), (number, found)
        assert margin >= CLEAR, (number, margin)


@pytest.mark.parametrize("way", WRONG.values(), ids=WRONG)
def test_a_formula_without_one_of_its_terms_misses_an_answer(way: Way) -> None:
    found = [Student(numbers_of(number)).best(way)[0] for number in range(len(ANSWERS))]
    missed = [number for number, layout in enumerate(found) if not answered(number, layout)]
    print(missed)
    assert missed


@pytest.mark.one_in(12)
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_by_search_one_mesh_is_clearly_the_fastest(number: int) -> None:
    numbers = numbers_of(number)
    models = LAYOUTS.models_of(numbers)
    best = Searcher(models.arranger, models.costs, numbers.memory).search(keep=10).best
    first, *others = [SimpleNamespace(mesh=p.layout.shape, time=p.time.seconds) for p in best]
    assert (best[0].layout.tp, best[0].layout.pp) == ANSWERS[number].mesh
    longer = [other.time for other in others if other.mesh != first.mesh] or [others[-1].time]
    assert min(longer) / first.time >= MARGIN_OF_SEARCH > LAYOUTS.BY_SEARCH
