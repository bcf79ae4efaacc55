"""One table of the events of all ranks, in which each wait is divided.

    receiver    began ├─── waiting ───┤── communicating ──┤ ended
    sender                            └ SEND started              a message
    others                            └ the last one came         a sum, an agreement, a barrier

A sum that runs during a backward pass counts from where a rank waits for it. Seconds, the bubble
and the file are sums over rows of this table, and lists of them.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nnmpi.parallel.mesh import MODEL, REPLICAS, Mesh
from nnmpi.run.trace.recording import EVENT, WAITS, which

MESSAGES = {"wait F": ("SEND_F", -1), "wait B": ("SEND_B", +1)}
"""Of a wait for a message: the operation that sends it, and how many stages away that is."""

COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "sums": REPLICAS,
    "statistics": REPLICAS,
    "settle": REPLICAS,
    "agree": MODEL,
    "tensor": ("tp",),
}
"""Of a wait for a group of ranks: the axes along which they differ."""

MEET = tuple(wait for wait in WAITS if wait != "gather")
"""Waits for others to come. A gather began before, on all ranks: what is waited for is messages."""

TRACED = np.dtype(
    [
        *((name, EVENT[name]) for name in EVENT.names or ()),
        ("rank", "i4"),
        ("net", "f8"),  # seconds, without the waits within an operation
        ("arrived", "f8"),  # of a wait: when the other side was there
        ("sent", "i8"),  # of a wait for a message: the row of its SEND, or -1
    ]
)


def traced(gathered: Sequence[np.ndarray], mesh: Mesh) -> np.ndarray:
    """The table, rank by rank; `gathered` are the events of each rank, on one clock."""
    events = np.concatenate(gathered)
    table = np.empty(len(events), TRACED)
    for name in EVENT.names or ():
        table[name] = events[name]
    table["rank"] = np.repeat(np.arange(len(gathered)), [len(own) for own in gathered])
    table["net"] = _net(events)
    table["arrived"] = np.where(which(events, *MEET), events["ended"], events["began"])
    table["sent"] = -1
    for wait, (send, away) in MESSAGES.items():
        _match(table, _group_of(len(gathered), mesh, *MODEL), wait, send, away)
    for kind, axes in COLLECTIVES.items():
        _meet(table, _group_of(len(gathered), mesh, *axes), kind)
    return table


def _net(events: np.ndarray) -> np.ndarray:
    """The seconds of each event without the waits within it: those end before it does."""
    seconds: np.ndarray = events["ended"] - events["began"]
    inside = which(events, *WAITS)
    operations, waits = np.flatnonzero(~inside), np.flatnonzero(inside)
    if operations.size:
        np.subtract.at(seconds, operations[np.searchsorted(operations, waits)], seconds[waits])
    return seconds


def _group_of(ranks: int, mesh: Mesh, *axes: str) -> np.ndarray:
    """The first rank of the group along these axes, for each rank; servers are alone."""
    first = np.arange(ranks)
    for group in mesh.groups(*axes):
        first[list(group)] = group[0]
    return first


def _match(table: np.ndarray, pipeline: np.ndarray, wait: str, send: str, away: int) -> None:
    """Finds the send that each wait for a message was for.

    None that seems to have begun after the wait had ended: the clocks of hosts drift.
    """

    def keyed(kind: str, away: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Pipeline, step, micro-batch and stage of the sender, and the row."""
        at = np.flatnonzero(which(table, kind) & (table["step"] >= 0))
        rows = table[at]
        stages = rows["stage"] + np.int64(away)
        columns = pipeline[rows["rank"]], rows["step"], rows["micro"], stages
        return zip(zip(*(c.tolist() for c in columns), strict=True), at.tolist(), strict=True)

    sends = dict(keyed(send, 0))
    for key, i in keyed(wait, away):
        j = sends.get(key, -1)
        if j >= 0 and table["began"][j] <= table["ended"][i]:
            table["sent"][i] = j
            table["arrived"][i] = max(table["began"][j], table["began"][i])


def _meet(table: np.ndarray, group: np.ndarray, kind: str) -> None:
    """The k-th wait of this kind in a step is one operation of all ranks of a group."""
    at = np.flatnonzero(which(table, kind) & (table["step"] >= 0))
    waits = table[at]
    steps = _pairs(waits["rank"], waits["step"])  # they do not decrease
    k = np.arange(len(at)) - np.searchsorted(steps, steps)
    _, step = np.unique(_pairs(group[waits["rank"]], waits["step"]), return_inverse=True)
    _, operation = np.unique(_pairs(step, k), return_inverse=True)
    last = np.full(len(at), -np.inf)
    np.maximum.at(last, operation, waits["began"])
    table["arrived"][at] = np.minimum(last[operation], waits["ended"])


def _pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A number for each pair of numbers below 2^31."""
    pairs: np.ndarray = a.astype(np.int64) << 32 | b
    return pairs
