"""Exhaustive lists: one death at every operation of every rank of small runs, noticed in each way.

    way                  the other ranks
    at once              notice the death, and what is revoked, at their next operation
    rank R late          ... but rank R only when no other rank can go on, or when it polls
    all late             ... all of them only then
    messages lost        get no message before that; those of the dead rank are lost with it
    messages written     ... those of the dead rank are written to their buffers, but not complete
    sends lost           have got nothing of what it has sent early: sends end at once, as in MPI
    sends received       get what it has sent early

Beside the death and the way nothing is decided: the rank that had the last turn has the next one.
That is one order of operations out of very many, but the others add little, since between two
branches runs are confluent. Let two operations of different ranks be possible at one time. Neither
needs the other, so both orders are possible. A post adds to the end of a queue that only one rank
sends to and only one receives from, because messages have a named source and a tag: both orders
leave the same queues, and match the same messages. To join a collective adds a value under the name
of its rank. To wait changes nothing, and returns as soon as its requests are complete, which they
stay. So the operations commute, and if a rank makes other operations in another order, then
because it has learnt of the order before: by `test`, by a death or what is revoked, by a meeting of
the ranks that are left, or by the clock. `test_exhaustive.py` counts it: where `test` waits, random
orders give each rank one and the same sequence of operations.
"""

from collections.abc import Mapping
from typing import Any

from simulation.case import Case, Fault
from simulation.layouts import LAYOUTS
from simulation.verdict import undisturbed


def ways(name: str) -> dict[str, Mapping[str, Any]]:
    """The ways in which a death is noticed in a layout, each with what it changes of a case."""
    return {
        "at once": {},
        **{f"rank {rank} late": {"slow": (rank,)} for rank in range(LAYOUTS[name].ranks)},
        "all late": {"unnoticed": 1.0},
        "messages lost": {"late": 1.0},
        "messages written": {"late": 1.0, "ghost": 1.0},
        "sends lost": {"buffered": 1.0},
        "sends received": {"buffered": 1.0, "ghost": 1.0},
    }


def deaths(name: str, way: str = "at once") -> list[Case]:
    """Cases with one death at each operation of each rank that does not notice it late alone."""
    changes = ways(name)[way]
    return [
        Case(name, kills=(Fault(rank, "start", 1, k),), drawn=(), **changes)
        for rank, operations in enumerate(undisturbed(name).counts)
        if rank not in changes.get("slow", ())
        for k in range(1, operations + 1)
    ]


def all_deaths(name: str) -> list[Case]:
    """The cases of a layout in all ways, one way after another."""
    return [case for way in ways(name) for case in deaths(name, way)]
