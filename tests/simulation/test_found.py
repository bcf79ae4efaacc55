"""Cases that broke a promise once: what was wrong, and the smallest case that showed it."""

import pytest

from simulation.case import Case, Fault, Sleep
from simulation.verdict import verdict


def killed(rank: int, mark: str, nth: int, after: int) -> Fault:
    return Fault(rank, mark, nth, after)


ASKED = (Fault(0, "start", 1, 300),)  # rank 0 gets SIGTERM

FOUND = {
    "a copy without tensors counted as whole, in the first restore of a run": Case(
        "rearranged, checkpoints", kills=(killed(1, "restoring", 1, 100),)
    ),
    "backups for others were dropped before the next session had its first one": Case(
        "rearranged, backups", kills=(killed(1, "restoring", 1, 150),)
    ),
    "there was no backup after a recovery in the last evaluation": Case(
        "zero 1, backups", kills=(killed(1, "evaluating", 2, 1), killed(2, "recovered", 1, 6))
    ),
    "the first backup of a session was cleared to make it again": Case(
        "rearranged, backups", kills=(killed(1, "restored", 1, 3),)
    ),
    "a stop that was agreed on was forgotten by going back to a backup": Case(
        "zero 1, backups", kills=(killed(0, "stopping", 1, 4),), signals=ASKED
    ),
    "a run that was to be suspended stopped, since the rank that had asked was lost": Case(
        "ring, checkpoints", kills=(killed(0, "suspending", 1, 3),), signals=ASKED
    ),
    "a run that made steps again was suspended after an epoch": Case(
        "zero 2, backups",
        kills=(killed(0, "start", 1, 826),),
        signals=(killed(1, "start", 1, 685),),
    ),
    "a rank that was spare heard of a step again, since another had not heard of it": Case(
        "zero 3 tp 2, backups", kills=(killed(3, "decided", 3, 1), killed(0, "recovered", 1, 1))
    ),
    "a loss in rearrange was taken for a restore, after which events are told again": Case(
        "rearranged, backups", kills=(killed(1, "start", 1, 526),)
    ),
    "servers waited for workers that had stopped where all had agreed to, before a loss": Case(
        "servers, checkpoints",
        seed=40219,
        kills=(
            killed(0, "start", 1, 652),
            killed(3, "confirming", 2, 7),
            killed(1, "confirming", 1, 5),
        ),
        signals=(killed(2, "start", 1, 611),),
        order="near",
        buffered=0.3,
        unnoticed=0.3,
        ghost=0.5,
        asleep=Sleep(1, "confirming", 2, 1, 200),
    ),
    "the last worker of servers had the only copy of buffers": Case(
        "one worker", kills=(killed(0, "start", 1, 250),)
    ),
    "servers did not get buffers before the next epoch after a recovery": Case(
        "servers", kills=(killed(0, "evaluated", 3, 4), killed(1, "recovered", 1, 20))
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_a_promise_that_was_broken_once(what: str) -> None:
    case = FOUND[what]  # without a seed, what is drawn are zeros
    result = verdict(case if case.seed else case._replace(drawn=()))
    assert any(mark.mark == "dies" for mark in result.scheduler.marks)
    assert not result.is_bad, result.text
