"""How options of add-ons change when a run goes on with another number of ranks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nnmpi.addons import Table
from nnmpi.options.config import Config


class Fitting(NamedTuple):
    """How a config with an add-on's option is fitted to a number of ranks.

    fewer    (config, ranks): the config for so few ranks
    options  (config, workers): options that change for so many ranks that compute
    note     (config): a note on what else another number of ranks changes; empty: nothing
    """

    fewer: Callable[[Config, int], Config] = lambda config, ranks: config
    options: Callable[[Config, int], Mapping[str, Any]] = lambda config, workers: {}
    note: Callable[[Config], str] = lambda config: ""


FITTINGS: Table[Fitting] = Table("fittings")
"""By an option or a feature: how a config with it is fitted to a number of ranks."""
