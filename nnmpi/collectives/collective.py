"""Collective: what ranks do together, by whatever algorithm."""

from enum import Enum


class Collective(Enum):
    """What each rank brings, and what it has afterwards."""

    ALL_REDUCE = "sum, for all"
    REDUCE_SCATTER = "sum, a part for each"
    ALL_GATHER = "parts of all, for all"
    GATHER_COUNTS = "integers of all, for all"
    ALL_TO_ALL = "a part of each for each"
    BROADCAST = "what one has, for all"
    MESSAGE = "what one has, for another one"
