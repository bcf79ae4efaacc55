"""Proves that passes make the exchanges that their layers need: compared are, by stage, way and
axis, the collectives and their numbers of elements. Of point-to-point messages their number is
compared where it is known; which of them an image row or a token takes is not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import prod

from nnmpi.addons.proof.actions import Actions
from nnmpi.addons.proof.layers import Due
from nnmpi.addons.proof.shares import Shares
from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import Kind

Place = tuple[int, str, str]
"""A stage, "F" or "B", and an axis."""
Sent = Counter[tuple[str, int]]
"""How often each exchange is made, by (operation, elements); 0 elements stand for any number."""

UNCOUNTED = frozenset(("messages", "rows"))
"""Exchanges of layers by messages whose number depends on values, or on where rows begin."""

MESSAGE = Collective.MESSAGE.value


def check_passes(shares: Shares, actions: Actions) -> None:
    """Raises ScheduleError if the passes of a rank make other exchanges than are due."""
    made, due, may = (defaultdict[Place, Sent](Sent) for _ in range(3))
    for axis, exchange, times in actions.in_passes():
        if exchange.during is not Kind.RECOMPUTE:
            way = "F" if exchange.during is Kind.F else "B"
            made[exchange.stage, way, axis][_of(exchange)] += times
    free = set[Place]()
    for is_due, way, row in _rows(shares, actions):
        place = row.stage, way, row.axis
        if row.operation in UNCOUNTED:
            free.add(place)
        for samples, times in Counter(actions.sizes).items():
            for each in _expected(shares, actions, row, samples):
                (due if is_due else may)[place][each] += times
    for place in sorted({*made, *due}):
        sent = made[place]
        if place in free:
            sent = Sent({each: n for each, n in sent.items() if each[0] != MESSAGE})
        missing, more = due[place] - sent, sent - due[place] - may[place]
        if missing or more:
            stage, way, axis = place
            why = [r.why for r in shares.due if (r.stage, r.way, r.axis) == place]
            raise ScheduleError(
                f"rank {actions.rank}, passes {way} of stage {stage}, along {axis}: missing "
                f"{_text(missing)}; too many {_text(more)} ({'; '.join(why[:3])})"
            )


def _of(exchange: Exchange) -> tuple[str, int]:
    is_message = exchange.operation is Collective.MESSAGE
    return exchange.operation.value, 0 if is_message else exchange.elements


def _text(sent: Sent) -> str:
    each = (f"{n} {name} of {elements} elements" for (name, elements), n in sent.items())
    return ", ".join(each) or "nothing"


def _rows(shares: Shares, actions: Actions) -> Iterator[tuple[bool, str, Due]]:
    """Yields what is due (True), and may be (False), in passes of this rank, and in which ones. A
    backward pass that runs layers again may repeat what their forward pass has sent, but for
    statistics along dp, which are kept; the second half of one may gather again what the first one
    has."""
    place = shares.place
    here = [
        row
        for row in shares.due
        if row.stage in actions.units
        and place.sizes[row.axis] > 1
        and place.runs(row.node, actions.at)
    ]
    yield from ((True, row.way, row) for row in here)
    yield from ((False, row.way, row) for row in shares.may if row.stage in actions.units)
    for row in here:
        is_kept = row.operation == "moments" and row.axis == "dp"
        is_again = row.way == "F" and row.node in place.again and not is_kept
        is_halved = row.way == "B" and row.operation == "all_gather" and actions.has_halves
        if is_again or is_halved:
            yield False, "B", row


def _expected(
    shares: Shares, actions: Actions, due: Due, samples: int
) -> Iterable[tuple[str, int]]:
    place, at = shares.place, actions.at
    shapes = [place.shape(e, samples, at, due.axis) for e in due.edges]
    p, elements = place.sizes[due.axis], sum(map(prod, shapes))
    if due.operation == "moments":
        channels = shapes[0][1]
        gathered = "all_gather", p * (1 + 2 * channels)
        return [gathered if due.way == "F" else ("all_reduce", 2 * channels)]
    if due.operation == "maxima":  # of the scores of each position: maximum, sum, and two more
        return [("all_gather", p * 4 * prod(shapes[0]) // shapes[0][1])]
    if due.operation == "keys":
        return [(MESSAGE, 0)] * ((p - 1) * (1 + (due.way == "B")))
    if due.operation == "counts":
        return [("all_gather", p * samples * shapes[0][-1])] * (due.way == "F")
    if due.operation == "messages":  # how many values each rank sends to each
        return [("all_gather", p * p)] * (due.way == "F")
    return [] if due.operation in UNCOUNTED else [(due.operation, elements)]
