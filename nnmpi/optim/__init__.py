"""Optimizers on flat buffers, learning-rate schedules, gradient clipping and loss scaling.
Schedulers under PyTorch's names are in `addons.torchlike`, the loops over arrays in
`arrays.kernels.steps`; `parallel.step` decides when a rank makes an update."""

from typing import TYPE_CHECKING, Any

from nnmpi import addons
from nnmpi.addons import finder
from nnmpi.nn.utils import clip_grad_norm_ as clip_grad_norm
from nnmpi.optim import rules
from nnmpi.optim.groups import DECAYS, all_decay, matrices_decay
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.rules import SGD, Adam, AdamW, RMSprop, optimizer_named
from nnmpi.optim.schedule import constant, cosine, step_decay, warm_up

__all__ = [
    "DECAYS",
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "all_decay",
    "clip_grad_norm",
    "constant",
    "cosine",
    "matrices_decay",
    "step_decay",
    "warm_up",
]

__path__ += [finder.ENTRY]

__all__ += list(addons.names_of(__name__))

if TYPE_CHECKING:
    from nnmpi.addons.optimizers.layerwise import LAMB as LAMB
    from nnmpi.addons.optimizers.layerwise import LARS as LARS
    from nnmpi.addons.optimizers.muon import Muon as Muon
    from nnmpi.addons.torchlike.optim import lr_scheduler as lr_scheduler
    from nnmpi.addons.torchlike.optim import swa_utils as swa_utils
    from nnmpi.addons.torchlike.optim.adaptive import ASGD as ASGD
    from nnmpi.addons.torchlike.optim.adaptive import Adadelta as Adadelta
    from nnmpi.addons.torchlike.optim.adaptive import Adagrad as Adagrad
    from nnmpi.addons.torchlike.optim.adaptive import Adamax as Adamax
    from nnmpi.addons.torchlike.optim.adaptive import NAdam as NAdam
    from nnmpi.addons.torchlike.optim.adaptive import RAdam as RAdam
    from nnmpi.addons.torchlike.optim.adaptive import Rprop as Rprop
    from nnmpi.addons.torchlike.optim.lbfgs import LBFGS as LBFGS
    from nnmpi.optim.rules import OPTIMIZERS as OPTIMIZERS
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> Any:
        if name == "OPTIMIZERS":
            of_add_ons = {key: optimizer_named(key) for key in rules.MORE_OPTIMIZERS.where}
            return rules.OPTIMIZERS | of_add_ons
        if where := addons.names_of(__name__).get(name):
            return addons.loaded(where)
        instead = "use Adam with a schedule, or write a subclass of Optimizer (docs/optimizers.md)"
        raise finder.missing(f"nnmpi.optim has no {name!r}: {instead}")
