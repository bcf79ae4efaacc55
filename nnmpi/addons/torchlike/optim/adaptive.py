"""Adadelta, Adagrad, Adamax, ASGD, NAdam, RAdam and Rprop, as in PyTorch. They update each element
separately, so they also work if a rank updates only a part of a parameter."""

import math
from typing import Unpack

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.nn.store import Operands
from nnmpi.optim.groups import Common, Group, Option, Parameters
from nnmpi.optim.optimizer import Optimizer, check_betas, check_eps, non_negative


class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012): the rate of each element is the root of a quotient of two running
    means, of squared changes and of squared gradients."""

    rho, eps, weight_decay = Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(parameters, common, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)

    def _check(self, group: Group) -> None:
        if not 0 <= group["rho"] <= 1:
            raise ValueError(f"rho {group['rho']} must be at least 0 and at most 1")
        check_eps(group["eps"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("square_avg", "acc_delta")

    def _update(self, x: Operands, group: Group) -> None:
        g, rho, eps = _decayed(x, group), group["rho"], group["eps"]
        squares, changes, sqrt = x.state["square_avg"], x.state["acc_delta"], xp_of(g).sqrt
        squares *= rho
        squares += (1 - rho) * g * g
        change = sqrt(changes + eps) / sqrt(squares + eps) * g
        changes *= rho
        changes += (1 - rho) * change * change
        x.values[...] -= group["lr"] * change


class Adagrad(Optimizer):
    """Adagrad (Duchi and others, 2011): divides the gradient by the root of the sum of its squares,
    which starts at `initial_accumulator_value`."""

    lr_decay, weight_decay, eps = Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )

    def _check(self, group: Group) -> None:
        for name in ("lr_decay", "weight_decay", "initial_accumulator_value"):
            non_negative(name, group[name])
        check_eps(group["eps"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def _update(self, x: Operands, group: Group) -> None:
        g, squares = _decayed(x, group), x.state["sum"]
        if x.t == 1:
            squares[...] = group["initial_accumulator_value"]
        squares += g * g
        rate = group["lr"] / (1 + (x.t - 1) * group["lr_decay"])
        x.values[...] -= rate * g / (xp_of(g).sqrt(squares) + group["eps"])


class Adamax(Optimizer):
    """Adamax (Kingma and Ba, 2015): Adam that divides by the largest, decaying gradient."""

    betas, eps, weight_decay = Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(parameters, common, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_eps(group["eps"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_inf")

    def _update(self, x: Operands, group: Group) -> None:
        g, (beta1, beta2) = _decayed(x, group), group["betas"]
        m, largest = x.state["exp_avg"], x.state["exp_inf"]
        m += (1 - beta1) * (g - m)
        largest *= beta2
        xp_of(g).maximum(largest, abs(g) + group["eps"], out=largest)
        x.values[...] -= group["lr"] / (1 - beta1**x.t) * m / largest


class ASGD(Optimizer):
    """ASGD (Polyak and Juditsky, 1992): gradient descent with a rate that falls, and the average of
    the parameters after each step from step t0 on, in the state array `ax`.

    Parameters decay by `lambd`, and the rate falls with the power `alpha`. As in PyTorch, each step
    computes the rate of the next one, so a changed learning rate takes effect one step later.
    """

    lambd, alpha, t0, weight_decay = Option(), Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            lambd=lambd,
            alpha=alpha,
            t0=t0,
            weight_decay=weight_decay,
        )

    def _check(self, group: Group) -> None:
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("ax", "eta")

    def _update(self, x: Operands, group: Group) -> None:
        g, average, rate, steps_made = _decayed(x, group), x.state["ax"], x.state["eta"], x.t - 1
        lambd, lr = group["lambd"], group["lr"]
        if x.t == 1:
            rate[...] = lr
        x.values[...] -= lambd * rate * x.values + rate * g
        rate[...] = lr / (1 + lambd * lr * x.t) ** group["alpha"]
        if steps_made - group["t0"] <= 1:
            average[...] = x.values
        else:
            average += (x.values - average) / (steps_made - group["t0"])


class _Moments(Optimizer):
    """The base of NAdam and RAdam: Adam's running means, and both kinds of weight decay."""

    betas, eps, weight_decay = Option(), Option(), Option()

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_eps(group["eps"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _moments(self, x: Operands, group: Group) -> tuple[Array, Array, Array]:
        """Applies weight decay; returns the gradient and the running means of it and its square."""
        if group["decoupled_weight_decay"]:
            x.values[...] *= 1 - group["lr"] * group["weight_decay"]
            g = x.grads
        else:
            g = _decayed(x, group)
        (beta1, beta2), m, v = group["betas"], x.state["exp_avg"], x.state["exp_avg_sq"]
        m += (1 - beta1) * (g - m)
        v *= beta2
        v += (1 - beta2) * g * g
        return g, m, v


class NAdam(_Moments):
    """NAdam (Dozat, 2016): Adam with Nesterov momentum, which rises with the number of steps. The
    state array `mu_product` has the product of the momenta so far."""

    momentum_decay = Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay,
        )

    def _check(self, group: Group) -> None:
        super()._check(group)
        non_negative("momentum_decay", group["momentum_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return (*super()._state_names(group), "mu_product")

    def _update(self, x: Operands, group: Group) -> None:
        g, m, v = self._moments(x, group)
        (beta1, beta2), decay, t = group["betas"], group["momentum_decay"], x.t
        mu, next_mu = (beta1 * (1 - 0.5 * 0.96 ** (n * decay)) for n in (t, t + 1))
        product = x.state["mu_product"]
        if t == 1:
            product[...] = 1
        product *= mu
        root = xp_of(v).sqrt(v / (1 - beta2**t)) + group["eps"]
        change = (1 - mu) / (1 - product) * g + next_mu / (1 - product * next_mu) * m
        x.values[...] -= group["lr"] * change / root


class RAdam(_Moments):
    """RAdam (Liu and others, 2019): Adam with a rate corrected for its variance."""

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            parameters,
            common,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
        )

    def _update(self, x: Operands, group: Group) -> None:
        _, m, v = self._moments(x, group)
        (beta1, beta2), t = group["betas"], x.t
        correction = 1 - beta2**t
        most = 2 / (1 - beta2) - 1
        length = most - 2 * t * beta2**t / correction  # of the mean that approximates v
        rate = group["lr"] / (1 - beta1**t)
        if length <= 5:
            x.values[...] -= rate * m
            return
        rate *= math.sqrt(
            correction * (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        )
        x.values[...] -= rate * m / (xp_of(v).sqrt(v) + group["eps"])


class Rprop(Optimizer):
    """Rprop (Riedmiller and Braun, 1993), for gradients of all samples: each element has a step
    size of its own, and only the sign of its gradient counts.

    The step sizes are `lr` at first. One is multiplied by etas[1] if the sign of the gradient is
    that of the step before, and otherwise by etas[0], without a step; it stays within `step_sizes`.
    """

    etas, step_sizes = Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        **common: Unpack[Common],
    ) -> None:
        super().__init__(parameters, common, lr=lr, etas=etas, step_sizes=step_sizes)

    def _check(self, group: Group) -> None:
        if not 0 < group["etas"][0] < 1 < group["etas"][1]:
            raise ValueError(f"etas {group['etas']} must be a factor from 0 to 1 and one above 1")

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("prev", "step_size")

    def _update(self, x: Operands, group: Group) -> None:
        g, previous, size, xp = x.grads, x.state["prev"], x.state["step_size"], xp_of(x.grads)
        if x.t == 1:
            size[...] = group["lr"]
        product = g * previous
        size[product > 0] *= group["etas"][1]
        size[product < 0] *= group["etas"][0]
        xp.clip(size, *group["step_sizes"], out=size)
        previous[...] = g
        previous[product < 0] = 0
        x.values[...] -= xp.sign(previous) * size


def _decayed(x: Operands, group: Group) -> Array:
    """Returns the gradient with weight decay added."""
    decay = group["weight_decay"]
    return x.grads + decay * x.values if decay else x.grads
