"""Options that cannot be combined, each pair with the reason: one table.

The command line reads it before anything is made; the tests try every row; docs/parallel.md shows
it to users.
"""

from collections.abc import Callable
from typing import NamedTuple

from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.config import Config
from nnmpi.parallel.layout import server_count
from nnmpi.quoting import shown


class Refusal(NamedTuple):
    """`option` is refused beside `beside`. Each is the name of an option, or one of `SPECIAL`."""

    option: str
    beside: str
    reason: str
    remedy: str


_OWN_SUM = "only ranks that sum gradients themselves use it"
_NO_SERVERS = "leave it out, or use --sync bsp --servers 0"
_WHOLE_SLICE = "one rank computes a slice, forward and back, before the next one"
_WHOLE_MODEL = "every rank that computes has the whole model and its activations"
_ONE = "leave one of the two out"
_TWO = "start it with mpirun -n 2, or leave verify out"
_SLOWING = "slowing works on ranks of data parallelism"

REFUSALS = (
    Refusal("reproducible", "micro_batches", "slices are micro-batches already", _ONE),
    Refusal("reproducible", "servers", "every rank updates its own copy of the parameters", _ONE),
    Refusal("reproducible", "allreduce", "gradients are summed along the tree over slices", _ONE),
    Refusal("reproducible", "bucket_mb", "the gradient of a slice is summed as a whole", _ONE),
    Refusal("reproducible", "overlap", "a slice is summed after its backward pass", _ONE),
    Refusal("reproducible", "progress", "a slice is summed after its backward pass", _ONE),
    Refusal("reproducible", "device", "the bits are promised on the CPU only", _ONE),
    Refusal("pipedream", "micro_batches", "a batch is one micro-batch and one step", _ONE),
    Refusal("pipedream", "recompute", "activations of few batches are kept, p at most", _ONE),
    Refusal("pipedream", "clip_norm", "no stage waits for the norm over all of them", _ONE),
    Refusal("pipedream", "verify", "it is not meant to equal one rank", _ONE),
    Refusal("pipedream", "slow_rank", _SLOWING, _ONE),
    Refusal("pipedream", "jitter", _SLOWING, _ONE),
    Refusal("allreduce", "servers", _OWN_SUM, _NO_SERVERS),
    Refusal("bucket_mb", "servers", _OWN_SUM, _NO_SERVERS),
    Refusal("overlap", "servers", _OWN_SUM, _NO_SERVERS),
    Refusal("progress", "servers", _OWN_SUM, _NO_SERVERS),
    Refusal("verify", "one rank", "there is nothing to compare it with", _TWO),
    Refusal("verify", "servers", "it compares copies that ranks update themselves", _NO_SERVERS),
    Refusal("reproducible", "pp", _WHOLE_SLICE, _ONE),
    Refusal("reproducible", "schedule", _WHOLE_SLICE, _ONE),
    Refusal("reproducible", "recompute", _WHOLE_SLICE, _ONE),
    Refusal("reproducible", "tp", "the tree adds up slices, not parts of a matrix product", _ONE),
    Refusal("reproducible", "zero", "every rank updates its own copy of the parameters", _ONE),
    Refusal("pipedream", "tp", "ranks of a stage would take messages in different orders", _ONE),
    Refusal("pipedream", "zero", "each stage is on one rank, which has all of its state", _ONE),
    Refusal("tp", "servers", _WHOLE_MODEL, _NO_SERVERS),
    Refusal("tp", "slow_rank", _SLOWING, _ONE),
    Refusal("tp", "jitter", _SLOWING, _ONE),
    Refusal("zero", "servers", "servers hold all parameters and optimizer state", _NO_SERVERS),
    Refusal("zero", "slow_rank", "slowing works on ranks with whole copies", _ONE),
    Refusal("zero", "jitter", "slowing works on ranks with whole copies", _ONE),
    Refusal(
        "zero 2 or 3",
        "allreduce without halves",
        "gradients are scattered to ranks that keep a part each: only ring, p2p and halving can",
        "use --allreduce ring, or --zero 1",
    ),
    Refusal("pp", "servers", _WHOLE_MODEL, _NO_SERVERS),
    Refusal("pp", "slow_rank", _SLOWING, _ONE),
    Refusal("pp", "jitter", _SLOWING, _ONE),
    Refusal("schedule", "servers", _WHOLE_MODEL, _NO_SERVERS),
    Refusal("recompute", "servers", _WHOLE_MODEL, _NO_SERVERS),
    Refusal("device", "ranks", "gradients are summed on the host", "use one rank or --device cpu"),
)


class Need(NamedTuple):
    """`option` means something only beside `other`."""

    option: str
    other: str
    reason: str


NEEDS = (
    Need("slices", "reproducible", "a batch is cut into slices for that alone"),
    Need("virtual_stages", "schedule interleaved", "in other schedules a rank has one stage"),
    Need("cut", "pp", "the model is cut between the ranks along pp"),
    Need("vertical_sync", "schedule pipedream", "others never have several versions of weights"),
    Need("staleness", "sync ssp", "bsp allows no staleness, asp any"),
)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for the first row that the config and the number of ranks meet."""
    for option, beside, reason, remedy in REFUSALS:
        first, second = _asked(option, config, ranks), _asked(beside, config, ranks)
        if first and second:
            raise ValueError(f"{first} with {second}: {reason}; {remedy}")
    for option, other, reason in NEEDS:
        name, _, value = other.partition(" ")
        met = str(getattr(config, name)) == value if value else _asked(name, config, ranks)
        if _asked(option, config, ranks) and not met:
            raise ValueError(
                f"{_asked(option, config, ranks)} without {other}: {reason}; "
                f"add --{other}, or leave {option} out"
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
    "ranks": lambda config, ranks: f"{ranks} ranks" if ranks > 1 else "",
    "one rank": lambda config, ranks: "1 rank" if ranks == 1 else "",
    "pipedream": lambda config, ranks: (
        "schedule pipedream" if config.schedule == "pipedream" else ""
    ),
    "zero 2 or 3": lambda config, ranks: f"zero {config.zero}" if config.zero > 1 else "",
    "allreduce without halves": _without_halves,
}
"""Names of the table that are no options: what the config asks for under them, in words."""
