"""The optimizers SGD, Adam, AdamW and RMSprop, and the table of all optimizers by name."""

from collections.abc import Callable
from typing import Unpack

from nnmpi.addons import Table
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import steps
from nnmpi.nn.store import Operands
from nnmpi.optim.groups import Common, Group, Option, Parameters
from nnmpi.optim.optimizer import Optimizer, check_betas, check_eps, non_negative


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay.

    With `dampening`, each gradient is multiplied by 1 - dampening before it is added to the
    momentum, except the first one.
    """

    takes_mixed = takes_momentum = True
    momentum, dampening, weight_decay, nesterov = Option(), Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )

    def _check(self, group: Group) -> None:
        if group["nesterov"] and (not group["momentum"] or group["dampening"]):
            raise ValueError("nesterov=True needs a momentum above 0, and no dampening")
        non_negative("momentum", group["momentum"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _update(self, x: Operands, group: Group) -> None:
        velocity = x.sum_for("momentum", group, "momentum_buffer") if group["momentum"] else None
        dampening = group["dampening"] if x.t > 1 else 0.0
        c = steps.SgdStep(
            group["lr"], group["momentum"], group["weight_decay"], group["nesterov"], dampening
        )
        steps.sgd(x.values, x.grads, velocity, c, x.mixed)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient.

    Unlike in PyTorch the state arrays are divided by a constant: exp_avg / (1 - beta1), exp_avg_sq
    / (1 - beta2) and max_exp_avg_sq / (1 - beta2). That saves two passes over memory
    (`kernels.steps`).
    """

    takes_mixed, decoupled = True, False
    betas, eps, weight_decay = Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )

    def _take_groups(self, groups: list[Group]) -> None:
        super()._take_groups(groups)
        self._betas: list[tuple[float, ...]] = [tuple(group["betas"]) for group in groups]

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_eps(group["eps"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        amsgrad_state = ("largest_squared_gradient_sum",) if group["amsgrad"] else ()
        return ("gradient_sum", "squared_gradient_sum", *amsgrad_state)

    def _convert_state(self) -> None:
        if [tuple(group["betas"]) for group in self.param_groups] != self._betas:
            self._rescale_state()

    def _rescale_state(self) -> None:
        """Rescales state arrays, divided by 1 - beta, after a change of the betas."""
        end, starts = 0, self._flat_state.starts
        for k, group in enumerate(self.param_groups):
            start, end = end, end + self._groups.count(k)
            if not self._changed(k):
                continue
            for name, array in self.state.items():
                group_state = array[starts[start] : starts[end]]
                steps.scale_loop(group_state, self._ratio(name, k))
            self._betas[k] = tuple(group["betas"])

    def _converted(self, name: str, i: int, numbers: Array) -> Array:
        k = self._groups[i]
        return numbers * self._ratio(name, k) if self._changed(k) else numbers

    def _changed(self, k: int) -> bool:
        """True if the betas of group k have changed since its state was last rescaled."""
        group = self.param_groups[k]
        if tuple(group["betas"]) == self._betas[k]:
            return False
        self._check(group)
        return True

    def _ratio(self, name: str, k: int) -> float:
        """Returns (1 - old beta) / (1 - new beta) for a state array of group k: state arrays are
        stored divided by 1 - beta, so a changed beta rescales them."""
        if name not in self._state_names(self.param_groups[k]):  # added by `add_state`
            return 1.0
        i = 0 if name == "gradient_sum" else 1
        new: float = self.param_groups[k]["betas"][i]
        return (1 - self._betas[k][i]) / (1 - new)

    def _update(self, x: Operands, group: Group) -> None:
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        c = steps.AdamStep(group["lr"], beta1, beta2, group["eps"], decay, self.decoupled, x.t)
        M, V = x.state["gradient_sum"], x.state["squared_gradient_sum"]
        largest = None
        if group["amsgrad"]:
            largest = x.sum_for("amsgrad", group, "largest_squared_gradient_sum")
        steps.adam(x.values, x.grads, M, V, c, largest, x.mixed)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    decoupled = True

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, amsgrad, **common)


class RMSprop(Optimizer):
    """RMSprop (Hinton, 2012): divides the gradient by the root of a running mean of its square.

    `centered` subtracts the square of a running mean of the gradient. Weight decay is added to the
    gradient.
    """

    takes_mixed = True
    alpha, eps, weight_decay, momentum = Option(), Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
        )

    def _check(self, group: Group) -> None:
        if not 0 <= group["alpha"] <= 1:
            raise ValueError(f"alpha {group['alpha']} must be at least 0 and at most 1")
        check_eps(group["eps"])
        non_negative("momentum", group["momentum"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        velocity = ("momentum_buffer",) if group["momentum"] else ()
        mean = ("grad_avg",) if group["centered"] else ()
        return ("square_avg", *velocity, *mean)

    def _update(self, x: Operands, group: Group) -> None:
        velocity = x.sum_for("momentum", group, "momentum_buffer") if group["momentum"] else None
        mean = x.sum_for("centered", group, "grad_avg") if group["centered"] else None
        c = steps.RmsPropStep(
            group["lr"], group["alpha"], group["eps"], group["weight_decay"], group["momentum"]
        )
        steps.rmsprop(x.values, x.grads, x.state["square_avg"], velocity, mean, c, x.mixed)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
}
"""Optimizers by their names on the command line."""

MORE_OPTIMIZERS: Table[Callable[..., Optimizer]] = Table("optimizers")
"""By name: what makes an optimizer of an add-on, of parameters and options."""


def optimizer_named(name: str) -> Callable[..., Optimizer]:
    """Returns the class, or another callable, that makes the optimizer with this name."""
    return OPTIMIZERS.get(name) or MORE_OPTIMIZERS.needed(name)
