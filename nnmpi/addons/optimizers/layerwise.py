"""LAMB and LARS: optimizers whose learning rate for a parameter depends on norms.

    measure   the sums of squares of each parameter and of its update; nothing is changed
    sum       over the ranks that have parts of the parameter, if there are several
    step      the update, with lr times the trust ratio: the quotient of the two norms

A rank may have only a part of a parameter, so a step needs sums over ranks between its two halves.
The first half changes nothing: if a rank is lost before all know the sums, no update is made.
"""

from collections.abc import Iterator, Sequence

from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Array, xp_of
from nnmpi.nn.store import FlatStore, Operands, Shard
from nnmpi.optim.groups import Group, Option, Parameters
from nnmpi.optim.optimizer import Optimizer, check_betas, check_eps, non_negative


class Layerwise(Optimizer):
    """The base of optimizers that scale the rate of each parameter by a trust ratio, `_ratio`, of
    its norm and that of its change at a learning rate of 1, `_direction`."""

    by_parameter = True

    def squares(self) -> list[float]:
        """Returns two sums of squares for each parameter, over the elements that this rank updates:
        of its values, and of the change at a learning rate of 1; 0 without a gradient. Ranks with
        parts of a parameter add them up and pass them to `step`."""
        self._prepare()
        terms = list[tuple[int, Array]]()
        for i, _, store, _, _, number, shards in self._ranges:
            for x in self._pieces(i, store, shards):
                direction = self._direction(x, self.param_groups[number])
                terms += [(2 * i, _sum_of_squares(x.values))]
                terms += [(2 * i + 1, _sum_of_squares(direction))]
        sums = [0.0] * (2 * len(self.parameters))
        # not asked of a parameter: with ZeRO 3 it may not be in memory, and would be gathered
        on = backend.of(terms[0][1]) if terms else CPU
        numbers = backend.to_floats(on, [term for _, term in terms])
        for (k, _), square in zip(terms, numbers, strict=True):
            sums[k] += square
        return sums

    def _begin(self, squares: Sequence[float]) -> None:
        self._known = squares or self.squares()

    def _group_of(self, number: int, i: int, lr_factor: float) -> Group:
        group = super()._group_of(number, i, lr_factor)
        values, direction = (n**0.5 for n in self._known[2 * i : 2 * i + 2])
        if values and direction:
            group["lr"] *= self._ratio(values, direction, group)
        return group

    def _pieces(self, i: int, store: FlatStore, shards: Sequence[Shard]) -> Iterator[Operands]:
        state = self._flat_state
        for x in store.updates(shards, state.arrays, state.starts[i], self.steps[i] + 1):
            yield from x.blocks()

    def _direction(self, x: Operands, group: Group) -> Array:
        """Returns the change of a slice at a learning rate of 1; changes nothing."""
        raise TypeError(f"{type(self).__name__} does not define _direction")

    def _ratio(self, values: float, direction: float, group: Group) -> float:
        """Returns the trust ratio of a parameter by the norms of its values and of its change. A
        subclass may use only their quotient: if several ranks have copies, both norms count every
        copy."""
        return values / direction


class LAMB(Layerwise):
    """LAMB (You and others, 2020): Adam with decoupled weight decay; the update of each parameter
    is scaled to the norm of the parameter, times the learning rate."""

    betas, eps, weight_decay = Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_eps(group["eps"])
        non_negative("weight_decay", group["weight_decay"])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _moments(self, x: Operands, group: Group) -> Sequence[Array]:
        (beta1, beta2), g = group["betas"], x.grads
        m = beta1 * x.state["exp_avg"] + (1 - beta1) * g
        return m, beta2 * x.state["exp_avg_sq"] + (1 - beta2) * g * g

    def _change(self, x: Operands, group: Group, m: Array, v: Array) -> Array:
        beta1, beta2 = group["betas"]
        root = xp_of(v).sqrt(v / (1 - beta2**x.t)) + group["eps"]
        change: Array = m / (1 - beta1**x.t) / root + group["weight_decay"] * x.values
        return change

    def _direction(self, x: Operands, group: Group) -> Array:
        return self._change(x, group, *self._moments(x, group))

    def _update(self, x: Operands, group: Group) -> None:
        m, v = self._moments(x, group)
        x.state["exp_avg"][...], x.state["exp_avg_sq"][...] = m, v
        x.values[...] -= group["lr"] * self._change(x, group, m, v)


class LARS(Layerwise):
    """LARS (You and others, 2017): SGD with momentum; the gradient of each parameter is scaled to
    the norm of the parameter, times `trust` and the learning rate."""

    takes_momentum = True
    momentum, weight_decay, trust = Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(
            parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust
        )

    def _check(self, group: Group) -> None:
        for name in ("momentum", "weight_decay", "trust"):
            non_negative(name, group[name])

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _direction(self, x: Operands, group: Group) -> Array:
        return x.grads

    def _ratio(self, values: float, direction: float, group: Group) -> float:
        ratio: float = group["trust"] * values / (direction + group["weight_decay"] * values)
        return ratio

    def _update(self, x: Operands, group: Group) -> None:
        velocity = x.state["momentum_buffer"]
        velocity *= group["momentum"]
        velocity += group["lr"] * (x.grads + group["weight_decay"] * x.values)
        x.values[...] -= velocity


def _sum_of_squares(array: Array) -> Array:
    """Returns the sum of squares of an array in float64, on its device."""
    return xp_of(array).sum(xp_of(array).square(array), dtype="float64")
