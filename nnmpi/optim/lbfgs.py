"""L-BFGS (Liu and Nocedal, 1989), on one rank: each step evaluates a closure several times."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nnmpi.arrays import backend
from nnmpi.optim.closure import called
from nnmpi.optim.groups import Group, Parameters
from nnmpi.optim.optimizer import Optimizer


class LBFGS(Optimizer):
    """Minimises by steps of length lr along quasi-Newton directions, which estimate the curvature
    from the last `history_size` steps.

    `step(closure)` calls the closure, which computes gradients and returns the loss, up to
    `max_eval` times. There is no line search, and a state dict has no history.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if line_search_fn is not None:
            raise ValueError(
                f"LBFGS: line_search_fn={line_search_fn!r} is not supported: leave it out, and "
                "give a small lr, such as 0.1"
            )
        super().__init__(
            parameters,
            lr=lr,
            max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change,
            history_size=history_size,
        )
        if len(self.param_groups) > 1:
            raise ValueError("LBFGS: give one list of parameters, not groups")
        self._pairs = deque[tuple[Any, Any, Any]](maxlen=history_size)
        self._iterations = 0
        self._scale: Any = 1.0
        self._direction: Any = None
        self._gradient: Any = None
        self._change: Any = None

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ()

    def _check(self, group: Group) -> None:
        """Does nothing: no option of L-BFGS has a limited range."""

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        lr_factor: float = 1.0,
        squares: Sequence[float] = (),
    ) -> Any:
        """Runs up to `max_iter` iterations, and returns the loss before the first one."""
        if closure is None:
            raise ValueError("LBFGS: step(closure) needs a function that computes the gradients")
        (group,) = self.param_groups
        first, gradient = self._evaluated(closure)
        loss = float(first)
        if abs(gradient).max() <= group["tolerance_grad"]:
            return first
        for done in range(1, group["max_iter"] + 1):
            length = float(group["lr"] * lr_factor)
            if not self._iterations:
                self._direction = -gradient
                length *= min(1.0, 1.0 / abs(gradient).sum())
            else:
                self._direction = self._next_direction(gradient)
            self._iterations += 1
            self._gradient, last_loss = gradient, loss
            slope = gradient @ self._direction
            if slope > -group["tolerance_change"]:
                break
            self._change = length * self._direction
            self._add(self._change)
            if done == group["max_iter"]:
                break
            value, gradient = self._evaluated(closure)
            loss = float(value)
            if (
                done + 1 >= group["max_eval"]
                or abs(gradient).max() <= group["tolerance_grad"]
                or abs(self._change).max() <= group["tolerance_change"]
                or abs(loss - last_loss) < group["tolerance_change"]
            ):
                break
        return first

    def _next_direction(self, gradient: Any) -> Any:
        """Updates the estimated inverse Hessian by the last step; returns minus its product with
        the gradient."""
        y = gradient - self._gradient
        curvature = y @ self._change
        if curvature > 1e-10:
            self._pairs.append((self._change, y, 1.0 / curvature))
            self._scale = curvature / (y @ y)
        d, shares = -gradient, []
        for s, y, rho in reversed(self._pairs):
            shares.append(rho * (s @ d))
            d = d - shares[-1] * y
        d = d * self._scale
        for (s, y, rho), share in zip(self._pairs, reversed(shares), strict=True):
            d = d + s * (share - rho * (y @ d))
        return d

    def _evaluated(self, closure: Callable[[], Any]) -> tuple[Any, Any]:
        """Calls the closure; returns the loss, and the gradients of all parameters as one flat
        array."""
        loss = called(closure)
        self._collect()
        self._prepare()
        xp = backend.xp_of(self.parameters[0].operand)
        rows = [
            xp.zeros(p.size, p.dtype) if p.grad_array is None else p.grad_array.reshape(-1)
            for p in self.parameters
        ]
        return loss, xp.concatenate(rows)

    def _add(self, change: Any) -> None:
        """Adds a flat array to the values of all parameters."""
        start = 0
        for p in self.parameters:
            p.array = p.operand + change[start : start + p.size].reshape(p.shape)
            p.mark_written()
            start += p.size
        self._share()
