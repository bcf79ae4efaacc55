"""SGD, Adam and AdamW."""

from collections.abc import Callable, Iterable

from nnmpi.kernels import steps
from nnmpi.nn.parameter import Parameter
from nnmpi.optim.optimizer import Operands, Optimizer, non_negative


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and not momentum:
            raise ValueError("nesterov=True needs a momentum above 0")
        self.sums = ("momentum_buffer",) if momentum else ()
        super().__init__(parameters, lr)
        self.momentum, self.nesterov = non_negative("momentum", momentum), nesterov
        self.weight_decay = non_negative("weight_decay", weight_decay)

    def _update(self, x: Operands) -> None:
        velocity = x.state[0] if x.state else None
        if self.momentum and velocity is None:
            raise ValueError(
                f"momentum {self.momentum} needs a running sum, which this SGD does not have: "
                "create it with a momentum above 0, which may then change between steps"
            )
        c = steps.Sgd(self.lr, self.momentum, self.weight_decay, self.nesterov)
        steps.sgd(x.values, x.grads, velocity, c)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient.

    The running sums are PyTorch's exp_avg / (1 - beta1) and exp_avg_sq / (1 - beta2), which take
    two passes over memory less (see `kernels.steps`).
    """

    sums = ("gradient_sum", "squared_gradient_sum")
    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas {betas} must be at least 0 and less than 1")
        super().__init__(parameters, lr)
        if non_negative("eps", eps) == 0:
            raise ValueError(
                "eps 0 divides 0 by 0 where a gradient is 0; give one above 0, like 1e-8"
            )
        self.betas, self.eps = betas, eps
        self.weight_decay = non_negative("weight_decay", weight_decay)

    def _update(self, x: Operands) -> None:
        c = steps.Adam(self.lr, *self.betas, self.eps, self.weight_decay, self.decoupled, x.t)
        M, V = x.state
        steps.adam(x.values, x.grads, M, V, c)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""The optimizers by their names on the command line."""
