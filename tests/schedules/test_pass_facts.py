"""What follows from a step's operations for the passes of its stages."""

from nnmpi.schedules.lists.step_list import BackwardKind, PassFacts
from nnmpi.schedules.op import Kind, Op

UNITS = {0: (0, 1)}
"""Stage 0 has two units; the rank has no other stage."""


def ops(text: str) -> list[Op]:
    """Makes the passes of stage 0 from a text such as "F0 B0", each of both units."""
    made = list[Op]()
    for kind, micro in ((word[:-1], int(word[-1])) for word in text.split()):
        made += [Op(Kind(kind), micro, 0, at) for at in (0, 1)]
    return made


def test_only_the_first_backward_pass_writes_gradients() -> None:
    kinds = PassFacts.of(ops("F0 F1 B1 B0"), UNITS).kinds
    assert kinds == {(0, 1): BackwardKind(False, False, 2), (0, 0): BackwardKind(True, False, 2)}


def test_gradients_that_are_scattered_are_never_added_to() -> None:
    kinds = PassFacts.of([Op(Kind.OPEN, at=0), *ops("F0 F1 B1 B0")], UNITS).kinds
    assert [kind.adds for kind in kinds.values()] == [False, False]


def test_a_halved_pass_ends_with_the_gradients_of_weights() -> None:
    kinds = PassFacts.of(ops("F0 I0 F1 W0 B1"), UNITS).kinds
    assert kinds == {(0, 0): BackwardKind(False, True, 2), (0, 1): BackwardKind(True, False, 2)}


def test_a_repeated_forward_pass_is_in_flight_from_its_repetition_on() -> None:
    facts = PassFacts.of(ops("F0 F1 RECOMPUTE0 B0 RECOMPUTE1 B1"), UNITS)
    assert facts.recomputed == {(0, 0), (0, 1)}
    assert facts.kinds[0, 0].in_flight == 1


def test_passes_of_stages_on_other_ranks_are_left_out() -> None:
    assert PassFacts.of(ops("F0 B0"), {1: (0,)}) == PassFacts({}, frozenset())
