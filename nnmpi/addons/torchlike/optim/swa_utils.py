"""PyTorch's averages of weights (means over steps, exponential moving averages), the schedule
SWALR, and `update_bn` for the running statistics of batch norms.

    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    ...                                # after each step:
    averaged.update_parameters(model)
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.optim.scheduler import LRScheduler, for_each
from nnmpi.autograd import Tensor, no_grad
from nnmpi.nn.layers.norm import BatchNorm1d, BatchNorm2d
from nnmpi.nn.module import Module
from nnmpi.optim.optimizer import Optimizer

Average = Callable[[Tensor, Tensor, Any], Any]
"""(averaged, current, count): returns the next average; it has `count` models so far."""

Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]
"""(averaged, current, count) of lists: writes the next averages into the first."""


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Returns f(averaged, current, count) = decay * averaged + (1 - decay) * current."""
    _check_decay(decay)
    return lambda averaged, current, count: decay * averaged + (1 - decay) * current


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """Returns f(averaged, current, count) of lists of tensors: `get_ema_avg_fn` of each."""
    return _of_each(get_ema_avg_fn(decay))


def get_swa_avg_fn() -> Average:
    """Returns f(averaged, current, count): the mean over `count` models and one more."""
    return lambda averaged, current, count: averaged + (current - averaged) / (count + 1)


def get_swa_multi_avg_fn() -> Averages:
    """Returns f(averaged, current, count) of lists of tensors: `get_swa_avg_fn` of each."""
    return _of_each(get_swa_avg_fn())


def _check_decay(decay: float) -> None:
    if not 0 <= decay <= 1:
        raise ValueError(f"get_ema_avg_fn: decay={decay} must be from 0 to 1")


def _of_each(average: Average) -> Averages:
    def averages(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Any) -> None:
        for a, c in zip(averaged, current, strict=True):
            a[...] = average(a, c, count)

    return averages


class AveragedModel(Module):
    """A copy of a model, `module`, whose parameters are averages over all models given to
    `update_parameters`: means, or as `avg_fn` or `multi_avg_fn` computes them. Buffers are copied
    from the last model; with `use_buffers` those of floating-point type are averages too."""

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: give avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", np.array(0))
        self.use_buffers = use_buffers
        self._averages = multi_avg_fn or _of_each(avg_fn or get_swa_avg_fn())

    n_averaged: Any

    def forward(self, *args: Any, **options: Any) -> Any:
        """Calls the averaged model."""
        return self.module(*args, **options)

    def update_parameters(self, model: Module) -> None:
        """Updates the averages by the parameters of a model."""
        count = int(self.n_averaged)
        averaged = [p.data for p in self.module.parameters()]
        current = [
            p.detach().to(a.device) for p, a in zip(model.parameters(), averaged, strict=True)
        ]
        for old, new in zip(self.module.buffers(), model.buffers(), strict=True):
            if self.use_buffers and old.dtype.kind == "f":
                averaged.append(old)
                current.append(new)
            else:
                old[...] = new
        with no_grad():
            if count:
                self._averages(averaged, current, count)
            else:
                for a, c in zip(averaged, current, strict=True):
                    a[...] = c
        self.n_averaged += 1


class SWALR(LRScheduler):
    """Changes the rates to `swa_lr` in `anneal_epochs` steps, by a cosine or linearly."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear") or anneal_epochs < 0:
            raise ValueError(
                f"SWALR: anneal_strategy={anneal_strategy!r}, anneal_epochs={anneal_epochs}: give "
                "'cos' or 'linear', and at least 0"
            )
        self._ends = for_each("SWALR", "swa_lr", swa_lr, optimizer.param_groups)
        self.anneal_epochs, self._is_cosine = anneal_epochs, anneal_strategy == "cos"
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self.last_epoch if self.anneal_epochs else max(1, self.last_epoch)
        last, share = self._share(step - 1), self._share(step)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [
            end if last == 1 else end * share + (rate - end * last) / (1 - last) * (1 - share)
            for rate, end in zip(rates, self._ends, strict=True)
        ]

    def _share(self, step: int) -> float:
        """Returns which share (0 to 1) of the change to `swa_lr` is done after `step` steps."""
        t = min(max(step / max(1, self.anneal_epochs), 0.0), 1.0)
        return (1 - math.cos(math.pi * t)) / 2 if self._is_cosine else t


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Computes the running statistics of all batch norms anew, as means over the batches of a
    loader. A batch is the model's input, or a tuple or list that begins with it."""
    norms = [m for m in model.modules() if isinstance(m, BatchNorm1d | BatchNorm2d)]
    momenta, was_training = [m.momentum for m in norms], model.training
    if not norms:
        return
    for m in norms:
        m.running_mean[...], m.running_var[...] = 0.0, 1.0
        m.num_batches_tracked[...] = 0
        m.momentum = None
    model.train()
    with no_grad():
        for batch in loader:
            x = batch[0] if isinstance(batch, list | tuple) else batch
            model(x if device is None else x.to(device))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
    model.train(was_training)
