"""The case of a seed: a layout, deaths, signals, and how late things are."""

import random
from collections.abc import Sequence
from typing import Any

from simulation.case import Case, Fault, Sleep
from simulation.layouts import DRAWN, LAYOUTS, Layout
from simulation.marks import AGREEMENTS
from simulation.verdict import Undisturbed, undisturbed

NEAR = {  # marks, and the most operations after them at which a rank is killed
    "recovering": 160, "recovered": 90, "arranged": 60, "updating": 40, "updated": 30,
    "backing up": 12, "writing": 60, "restoring": 330, "restored": 60, "evaluating": 30,
    "suspending": 60, **dict.fromkeys(AGREEMENTS, 6),
}  # fmt: skip
MOST_OPERATIONS, SLOW = 60, 400
"""Of a disk, while a run writes checkpoints; the most polls of a slow one."""
AFTER_A_DEATH = ("recovering", "recovered", "arranged")


def drawn_case(seed: int, names: Sequence[str] = ()) -> Case:
    """The case of a seed, with one of these layouts, by default of all."""
    drawn = random.Random(seed)
    name = drawn.choice(names or list(DRAWN))
    layout, plain = LAYOUTS[name], undisturbed(name)
    victims = list(range(layout.ranks))
    if drawn.random() < 0.85:  # the death of a server is seldom interesting: it ends the run
        victims = victims[: layout.ranks - layout.servers]
    drawn.shuffle(victims)
    deaths = min(drawn.choice((0, 1, 1, 1, 2, 2, 2, 3)), layout.ranks - 1, len(victims))
    kills = tuple(_kill(drawn, i, rank, plain) for i, rank in enumerate(victims[:deaths]))
    signals = ()
    if drawn.random() < (0.5 if layout.saves else 0.12):
        rank = drawn.randrange(layout.ranks)
        after = drawn.randint(plain.counts[rank] // 5, plain.counts[rank])
        signals = (Fault(rank, "start", 1, after),)

    def some(*chances: float) -> float:
        return drawn.choice((0.0, *chances))

    asleep = _sleep(drawn, layout, kills, plain) if drawn.random() < 0.35 else None
    order = drawn.choice(("random", "near", "near", "priority"))
    chances = some(0.1, 0.5), some(0.3, 0.9), some(0.3, 0.8), some(0.5)
    case = Case(name, seed, kills, signals, order, *chances, asleep)
    return case._replace(**_of_disk(drawn, layout, plain)) if layout.saves else case


def _of_disk(drawn: random.Random, layout: Layout, plain: Undisturbed) -> dict[str, Any]:
    """What happens to the disk and the clock of a run that writes checkpoints."""
    found: dict[str, Any] = {}
    if drawn.random() < 0.3 and not layout.arranges_anew:
        found["cut"] = drawn.randint(1, MOST_OPERATIONS)
    if drawn.random() < 0.2:
        found["longest"] = SLOW
    if drawn.random() < (0.5 if layout.heeds_clock else 0.1):
        found["jumps"] = (Fault(0, "start", 1, drawn.randint(1, plain.counts[0])),)
    return found


def _kill(drawn: random.Random, number: int, rank: int, plain: Undisturbed) -> Fault:
    """A death anywhere, or soon after a mark; later deaths are often within a recovery."""
    operations = plain.counts[rank]
    if not number and drawn.random() < 0.45:
        return Fault(rank, "start", 1, drawn.randint(1, operations + operations // 12))
    if not number and drawn.random() < 0.3:  # just before the end of the run
        return Fault(rank, "start", 1, operations - drawn.randrange(15))
    mark = drawn.choice(AFTER_A_DEATH if number and drawn.random() < 0.6 else [*NEAR])
    most = NEAR[mark] if drawn.random() < 0.6 else 10  # often just inside an agreement
    return Fault(rank, mark, _nth(drawn, plain, rank, mark), drawn.randint(1, most))


def _nth(drawn: random.Random, plain: Undisturbed, rank: int, mark: str) -> int:
    """Which time a rank passes a mark: any of those of the run that nobody leaves."""
    times = plain.passed[rank, mark]
    return drawn.randint(1, times) if times > 1 else drawn.choice((1, 1, 1, 2, 3))


def _sleep(
    drawn: random.Random, layout: Layout, kills: Sequence[Fault], plain: Undisturbed
) -> Sleep:
    """A rank falls asleep anywhere, or in the agreement around which another one is killed."""
    rank, turns = drawn.randrange(layout.ranks), drawn.choice((30, 200, 1500))
    around = [kill for kill in kills if kill.mark in AGREEMENTS and kill.rank != rank]
    if not around:
        return Sleep(rank, "start", 1, drawn.randint(1, plain.counts[rank]), turns)
    kill = drawn.choice(around)
    return Sleep(rank, AGREEMENTS[kill.mark], kill.nth, drawn.randrange(4), turns)
