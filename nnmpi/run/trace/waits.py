"""What a rank waits for, divided: until the other side was there, and from then on.

    receiver    began ├─── waiting ───┤── communicating ──┤ ended
    sender                            └ SEND started              a message
    others                            └ the last one came         a sum, an agreement, a barrier

A sum that runs during a backward pass counts from where a rank waits for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.mesh import Mesh
from nnmpi.run.trace.recording import WAITS, which

MESSAGES = {"wait F": ("SEND_F", -1), "wait B": ("SEND_B", +1)}
"""Of a wait for a message: the operation that sends it, and how many stages away that is."""

COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "sums": ("dp",),
    "statistics": ("dp",),
    "settle": ("dp",),
    "agree": ("pp", "tp"),
    "tensor": ("tp",),
}
"""Of a wait for a group of ranks: the axes along which they differ."""

MEET = tuple(wait for wait in WAITS if wait != "gather")
"""Waits for others to come. A gather began before, on all ranks: what is waited for is messages."""


class Traced(NamedTuple):
    """The events of a rank, and what follows from those of all ranks."""

    events: np.ndarray
    net: np.ndarray  # seconds, without the waits within an operation
    arrived: np.ndarray  # of a wait: when the other side was there
    sent: np.ndarray  # of a wait for a message: the event of its sender, or -1
    sender: np.ndarray  # and the rank, or -1


def traced(gathered: Sequence[np.ndarray], mesh: Mesh) -> list[Traced]:
    """`gathered` are the events of each rank, on one clock."""
    found = [
        Traced(
            events,
            net(events),
            np.where(which(events, *MEET), events["ended"], events["began"]),
            np.full(len(events), -1),
            np.full(len(events), -1),
        )
        for events in gathered
    ]
    for ranks in groups(mesh, "pp", "tp"):
        for wait, (send, away) in MESSAGES.items():
            _match(found, ranks, wait, send, away)
    for kind, axes in COLLECTIVES.items():
        for ranks in groups(mesh, *axes):
            _meet([found[r] for r in ranks], kind)
    return found


def net(events: np.ndarray) -> np.ndarray:
    """The seconds of each event without the waits within it: those end before it does."""
    seconds: np.ndarray = events["ended"] - events["began"]
    inside = which(events, *WAITS)
    operations, waits = np.flatnonzero(~inside), np.flatnonzero(inside)
    if operations.size:
        np.subtract.at(seconds, operations[np.searchsorted(operations, waits)], seconds[waits])
    return seconds


def groups(mesh: Mesh, *axes: str) -> Iterable[tuple[int, ...]]:
    """The groups of ranks that differ along these axes."""
    return sorted({mesh.group(rank, *axes) for rank in range(mesh.size)})


def _match(found: Sequence[Traced], ranks: Sequence[int], wait: str, send: str, away: int) -> None:
    """Finds the send that each wait for a message was for.

    None that seems to have begun after the wait had ended: the clocks of hosts drift.
    """
    sends: dict[tuple[int, ...], tuple[int, int]] = {
        key: (rank, i) for rank in ranks for i, key in _keys(found[rank].events, send, 0)
    }
    for rank in ranks:
        own = found[rank]
        for i, key in _keys(own.events, wait, away):
            sender, j = sends.get(key, (rank, i))
            sent_at = found[sender].events["began"][j]
            if key in sends and sent_at <= own.events["ended"][i]:
                own.sender[i], own.sent[i] = sender, j
                own.arrived[i] = max(sent_at, own.events["began"][i])


def _keys(events: np.ndarray, kind: str, away: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Of the events of a kind: their numbers, and (step, micro-batch, stage of the sender)."""
    at = np.flatnonzero(which(events, kind) & (events["step"] >= 0))
    rows = events[at]
    columns = rows["step"], rows["micro"], rows["stage"] + np.int64(away)
    return zip(at.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True)


def _meet(group: Sequence[Traced], kind: str) -> None:
    """The k-th wait of this kind in a step is one operation of all ranks of a group."""
    at = [np.flatnonzero(which(t.events, kind) & (t.events["step"] >= 0)) for t in group]
    keys = [_numbered(t.events["step"][i]) for t, i in zip(group, at, strict=True)]
    _, index = np.unique(np.concatenate(keys), return_inverse=True)
    began = np.concatenate([t.events["began"][i] for t, i in zip(group, at, strict=True)])
    last = np.full(len(began), -np.inf)
    np.maximum.at(last, index, began)
    ends = np.cumsum([len(i) for i in at])[:-1]
    for t, i, when in zip(group, at, np.split(last[index], ends), strict=True):
        t.arrived[i] = np.minimum(when, t.events["ended"][i])


def _numbered(steps: np.ndarray) -> np.ndarray:
    """Keys from steps, which do not decrease: the step, and how many of it came before."""
    first = np.searchsorted(steps, steps)
    return steps.astype(np.int64) << 32 | (np.arange(len(steps)) - first)
