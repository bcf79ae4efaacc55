"""Options of parameter servers: --servers, and --staleness, the number of steps that a rank may be
ahead of the slowest one."""

from dataclasses import dataclass, replace
from typing import Any

from nnmpi.options import resume_rules as rules
from nnmpi.options.features import (
    ALL_REDUCE,
    EXACT_SUMS,
    PLAIN_PASSES,
    STEPS_TOGETHER,
    WHOLE_MATRICES,
    WHOLE_MODEL,
    AddOnOptions,
    Feature,
)
from nnmpi.options.groups import sync_option
from nnmpi.options.value_forms import FROM_0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of parameter servers: --servers, their number, and --staleness, the number of steps
    that a rank may be ahead of the slowest one."""

    staleness: int = sync_option(
        0,
        "steps that a rank may be ahead of the slowest, with ssp",
        FROM_0,
        resume=rules.OTHER_STEPS,
    )
    servers: int = sync_option(
        0,
        "number of parameter servers, the last ranks; default: 1 for ssp and asp, 0 for bsp",
        FROM_0,
    )


def server_count(config: Any) -> int:
    """Returns the number of ranks that are parameter servers, from --servers. By default it is 0
    with --sync bsp, and 1 with ssp and asp."""
    return int(config.servers or config.sync in ("ssp", "asp"))


def with_fewer(config: Any, ranks: int) -> Any:
    """Returns the config with so few parameter servers that at least one of `ranks` ranks computes;
    with a single rank, a config without servers."""
    if server_count(config) < ranks:
        return config
    if ranks > 1:
        return replace(config, servers=ranks - 1)
    return replace(config, servers=0, sync="bsp", staleness=0)


def note_of_fitted(config: Any) -> str:
    """Returns a message for a run that is resumed with another number of workers: they begin at new
    positions in the data. Returns "" with --sync bsp, where all workers make each step together."""
    if config.sync == "bsp":
        return ""
    return "workers begin at new positions in the data, since their number has changed"


def _servers(config: Any, ranks: int) -> str:
    n = server_count(config)
    return f"{n} server{'s' * (n != 1)} (sync {config.sync})" if n else ""


FEATURES = (
    Feature(
        "servers",
        _servers,
        relies_on=(EXACT_SUMS, WHOLE_MODEL, PLAIN_PASSES),
        breaks={
            EXACT_SUMS: "servers update in their place",
            STEPS_TOGETHER: "workers go on at their own pace",
            ALL_REDUCE: "servers add them up",
            WHOLE_MATRICES: "each server updates a slice",
        },
        conflicts={
            "16 bits": "servers keep and send parameters of one type",
            "averaging": "replicas exchange their parameters themselves",
            "layerwise": "a server has parts of parameters, whose norms it needs",
        },
        remedy="leave it out, or use --sync bsp --servers 0",
        covers="any run with parameter servers",
    ),
    Feature("staleness", requires={"sync ssp": "bsp allows no staleness, asp any"}),
)

ADDED = AddOnOptions(Options, FEATURES, {"sync": ("ssp", "asp")})
