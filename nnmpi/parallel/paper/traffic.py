"""Bytes and messages that a rank sends in a step, by axis, from the step on paper."""

from collections.abc import Iterable

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.sent import TRAFFIC_AXES, Sent, Traffic, sent
from nnmpi.parallel.paper.rank import exchanges


def traffic(a: Arrangement, rank: int, batch: int) -> Traffic:
    """What a rank sends along each axis in a step over a batch of so many samples."""
    by_axis = exchanges(a, rank, batch)
    return {axis: all_sent(a, rank, by_axis.get(axis, ())) for axis in TRAFFIC_AXES}


def parameters_sent(a: Arrangement, rank: int, batch: int) -> Sent:
    """What of the traffic along dp is parameters, which ZeRO gathers."""
    along_dp = exchanges(a, rank, batch).get("dp", ())
    return all_sent(a, rank, (each for each in along_dp if each.what == "parameters"))


def all_sent(a: Arrangement, rank: int, exchanges: Iterable[Exchange]) -> Sent:
    """What a rank sends in exchanges."""
    return sum((sent(a, each, rank) for each in exchanges), Sent())
