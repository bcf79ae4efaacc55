"""Makes the optimizer that a run's options ask for."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from nnmpi.nn.parameter import Parameter
from nnmpi.optim.groups import DECAYS
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.rules import optimizer_named
from nnmpi.options.config import Config


def of_config(config: Config, parameters: Sequence[Parameter]) -> Optimizer:
    """Makes the optimizer of a run's options."""
    lr, decay = config.lr, config.weight_decay
    trained = DECAYS[config.weight_decay_of](parameters)
    make = optimizer_named(config.optimizer)
    momentum = {"momentum": config.momentum} if getattr(make, "takes_momentum", False) else {}
    return make(trained, lr, weight_decay=decay, **momentum)


def state_arrays_of(config: Config) -> tuple[str, ...]:
    """Returns the names of the state arrays of the optimizer that `config` asks for."""
    return _state_arrays_of(optimizer_named(config.optimizer), config.optimizer, config.momentum)


@lru_cache(maxsize=64)
def _state_arrays_of(rule: Callable[..., Optimizer], name: str, momentum: float) -> tuple[str, ...]:
    """Returns the names of an optimizer's state arrays with this momentum, cached for the function
    `rule`, since a user may register another one under its name."""
    config = Config(optimizer=name, momentum=momentum)
    return tuple(of_config(config, [Parameter(np.zeros(1))]).state_names)
