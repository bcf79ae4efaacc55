"""Optimizers on flat buffers, learning-rate schedules and gradient clipping.

In this room: the optimizers of `OPTIMIZERS`, parameter groups, optimizer state, loss scaling, and
schedulers under PyTorch's names. The loops over arrays are in `arrays.kernels.steps`; when a rank
updates is decided in `parallel.step`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnmpi import addons
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.utils import clip_grad_norm_ as clip_grad_norm
from nnmpi.optim.groups import DECAYS, all_decay, matrices_decay
from nnmpi.optim.layerwise import LAMB, LARS
from nnmpi.optim.muon import Muon
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.rules import OPTIMIZERS, SGD, Adam, AdamW, RMSprop
from nnmpi.optim.schedule import constant, cosine, step_decay, warm_up
from nnmpi.options.config import Config

WITH_MOMENTUM = "sgd", "lars"
"""The optimizers that --momentum is for."""


def of_config(config: Config, named: Sequence[tuple[str, Parameter]]) -> Optimizer:
    """Makes the optimizer that the options of a run ask for, over parameters given with their
    paths."""
    lr, decay = config.lr, config.weight_decay
    trained = DECAYS[config.weight_decay_of](p for _, p in named)
    momentum = {"momentum": config.momentum} if config.optimizer in WITH_MOMENTUM else {}
    return OPTIMIZERS[config.optimizer](trained, lr, weight_decay=decay, **momentum)


__all__ = [
    "DECAYS",
    "LAMB",
    "LARS",
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "Muon",
    "Optimizer",
    "RMSprop",
    "all_decay",
    "clip_grad_norm",
    "constant",
    "cosine",
    "matrices_decay",
    "step_decay",
    "warm_up",
    *addons.names_of("nnmpi.optim"),
]

if TYPE_CHECKING:
    from nnmpi.optim import lr_scheduler as lr_scheduler
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> Any:
        if where := addons.names_of(__name__).get(name):
            return addons.loaded(where)
        why = "" if name != "LBFGS" else "its line search needs all parameters on one rank: "
        instead = "use Adam with a schedule, or write a subclass of Optimizer (docs/optimizers.md)"
        raise AttributeError(f"nnmpi.optim has no {name!r}: {why}{instead}")
