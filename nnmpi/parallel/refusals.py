"""Options that cannot be combined, each pair with the reason: rows of one table.

Each feature has rows in its own folder; `plan.py` puts them together. The command line reads the
table before anything is made; the tests try every row; docs/parallel.md shows it to users.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.config import Config
from nnmpi.parallel.layout import server_count
from nnmpi.quoting import shown

NO_SERVERS = "leave it out, or use --sync bsp --servers 0"
WHOLE_MODEL = "every rank that computes has the whole model and its activations"
ONE = "leave one of the two out"
SLOWING = "slowing works on ranks of data parallelism"


class Refusal(NamedTuple):
    """`option` is refused beside `beside`. Each is the name of an option, or one of `SPECIAL`."""

    option: str
    beside: str
    reason: str
    remedy: str


class Need(NamedTuple):
    """`option` means something only beside `other`."""

    option: str
    other: str
    reason: str


def check(config: Config, ranks: int, refusals: Sequence[Refusal], needs: Sequence[Need]) -> None:
    """Raises ValueError for the first row that the config and the number of ranks meet."""
    for option, beside, reason, remedy in refusals:
        first, second = _asked(option, config, ranks), _asked(beside, config, ranks)
        if first and second:
            raise ValueError(f"{first} with {second}: {reason}; {remedy}")
    for option, other, reason in needs:
        name, _, value = other.partition(" ")
        met = str(getattr(config, name)) == value if value else _asked(name, config, ranks)
        if _asked(option, config, ranks) and not met:
            raise ValueError(
                f"{_asked(option, config, ranks)} without {other}: {reason}; "
                f"add --{other.replace('_', '-')}, or leave {option} out"
            )


def _asked(name: str, config: Config, ranks: int) -> str:
    """What the config asks for under this name, in words; empty if it does not."""
    if name in SPECIAL:
        return SPECIAL[name](config, ranks)
    value = getattr(config, name)
    if value == getattr(Config(), name):
        return ""
    return name if value is True else f"{name} {shown(value)}"


def _servers(config: Config, ranks: int) -> str:
    n = server_count(config)
    return f"{n} server{'s' * (n != 1)} (sync {config.sync})" if n else ""


def _without_halves(config: Config, ranks: int) -> str:
    halves = config.allreduce == "auto" or config.allreduce in REDUCE_SCATTERS
    return "" if halves else f"allreduce {config.allreduce}"


SPECIAL: dict[str, Callable[[Config, int], str]] = {
    "servers": _servers,
    "several ranks": lambda config, ranks: f"{ranks} ranks" if ranks > 1 else "",
    "one rank": lambda config, ranks: "1 rank" if ranks == 1 else "",
    "pipedream": lambda config, ranks: (
        "schedule pipedream" if config.schedule == "pipedream" else ""
    ),
    "zero 2 or 3": lambda config, ranks: f"zero {config.zero}" if config.zero > 1 else "",
    "allreduce without halves": _without_halves,
}
"""Names of the table that are no options: what the config asks for under them, in words."""
