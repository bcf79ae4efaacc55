"""L-BFGS (Liu and Nocedal, 1989), on one rank: each step evaluates a closure several times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.optim.line_search import Trial, strong_wolfe
from nnmpi.arrays import backend
from nnmpi.nn.graph import mapped
from nnmpi.optim import state as states
from nnmpi.optim.closure import called
from nnmpi.optim.groups import Group, Parameters
from nnmpi.optim.optimizer import Optimizer

STRONG_WOLFE = "strong_wolfe"


@dataclass
class History:
    """The state that L-BFGS keeps between iterations, by PyTorch's names, as in a state dict.

    d, t                     the last direction and the length of the step along it
    old_stps, old_dirs, ro   the last steps s, the differences y of gradients, and 1 / (s @ y)
    H_diag                   the factor of the first estimate of the inverse Hessian
    """

    func_evals: int = 0
    n_iter: int = 0
    d: Any = None
    t: float = 0.0
    old_dirs: list[Any] = field(default_factory=list)
    old_stps: list[Any] = field(default_factory=list)
    ro: list[Any] = field(default_factory=list)
    H_diag: Any = 1.0
    prev_flat_grad: Any = None
    prev_loss: float = 0.0


class LBFGS(Optimizer):
    """Minimises by steps along quasi-Newton directions, which estimate the curvature from the last
    `history_size` steps.

    `step(closure)` calls the closure, which computes gradients and returns the loss, up to
    `max_eval` times. Steps have the length lr; with `line_search_fn="strong_wolfe"` a line search
    chooses the length, and begins with lr.
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
        super().__init__(
            parameters,
            lr=lr,
            max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change,
            history_size=history_size,
            line_search_fn=line_search_fn,
        )
        if len(self.param_groups) > 1:
            raise ValueError("LBFGS: give one list of parameters, not groups")
        self._history = History()

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ()

    def _check(self, group: Group) -> None:
        if group["line_search_fn"] not in (None, STRONG_WOLFE):
            raise ValueError(
                f"LBFGS: line_search_fn={group['line_search_fn']!r} must be {STRONG_WOLFE!r}, or "
                "None for steps of the length lr"
            )

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        lr_factor: float = 1.0,
        squares: Sequence[float] = (),
    ) -> Any:
        """Runs up to `max_iter` iterations, which call `closure` (it computes the loss and the
        gradients); returns the loss before the first one. `lr_factor` multiplies the learning rate
        in this step; `squares` is for other optimizers, such as LAMB."""
        if closure is None:
            raise ValueError("LBFGS: step(closure) needs a function that computes the gradients")
        (group,), h = self.param_groups, self._history
        evaluated = h.func_evals
        first, gradient = self._evaluated(closure)
        loss = float(first)
        if abs(gradient).max() <= group["tolerance_grad"]:
            return first
        for done in range(1, group["max_iter"] + 1):
            h.d = self._next_direction(gradient, group["history_size"])
            most = 1.0 if h.n_iter else min(1.0, 1.0 / abs(gradient).sum())
            h.t = float(most * group["lr"] * lr_factor)
            h.n_iter += 1
            h.prev_flat_grad, h.prev_loss = gradient, loss
            slope = float(gradient @ h.d)
            if slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                start, calls = Trial(0.0, loss, gradient, slope), h.func_evals - evaluated
                h.t, loss, gradient, _ = self._searched(closure, start, group, calls)
            else:
                self._set([p._array for p in self.parameters], h.t * h.d)
                if done < group["max_iter"]:
                    value, gradient = self._evaluated(closure)
                    loss = float(value)
            if (
                h.func_evals - evaluated >= group["max_eval"]
                or abs(gradient).max() <= group["tolerance_grad"]
                or abs(h.t * h.d).max() <= group["tolerance_change"]
                or abs(loss - h.prev_loss) < group["tolerance_change"]
            ):
                break
        return first

    def _next_direction(self, gradient: Any, most: int) -> Any:
        """Returns minus the product of the inverse Hessian, estimated from the last `most` steps,
        and the gradient."""
        h = self._history
        if not h.n_iter:
            return -gradient
        y, s = gradient - h.prev_flat_grad, h.t * h.d
        curvature = y @ s
        if curvature > 1e-10:
            for kept, new in ((h.old_dirs, y), (h.old_stps, s), (h.ro, 1.0 / curvature)):
                kept[:] = [*kept, new][-most:]
            h.H_diag = curvature / (y @ y)
        d, shares = -gradient, []
        pairs = [*zip(h.old_stps, h.old_dirs, h.ro, strict=True)]
        for s, y, rho in reversed(pairs):
            shares.append(rho * (s @ d))
            d = d - shares[-1] * y
        d = d * h.H_diag
        for (s, y, rho), share in zip(pairs, reversed(shares), strict=True):
            d = d + s * (share - rho * (y @ d))
        return d

    def _searched(
        self, closure: Callable[[], Any], start: Trial, group: Group, calls: int
    ) -> Trial:
        """Makes the step that a line search finds along the direction, and returns its Trial.
        `calls` counts calls of the closure so far."""
        h, origin = self._history, [p._array.copy() for p in self.parameters]

        def tried(length: float) -> Trial:
            self._set(origin, length * h.d)
            loss, gradient = self._evaluated(closure)
            return Trial(length, float(loss), gradient, float(gradient @ h.d))

        most, tolerance = group["max_eval"] - calls, group["tolerance_change"]
        step = strong_wolfe(tried, start, h.t, most, tolerance / float(abs(h.d).max()))
        self._set(origin, step.length * h.d)
        return step

    def _evaluated(self, closure: Callable[[], Any]) -> tuple[Any, Any]:
        """Calls the closure; returns the loss, and the gradients as one flat array."""
        loss = called(closure)
        self._history.func_evals += 1
        self._collect()
        self._prepare()
        xp = backend.xp_of(self.parameters[0]._array)
        rows = [
            xp.zeros(p.size, p.dtype) if p.grad_array is None else p.grad_array.reshape(-1)
            for p in self.parameters
        ]
        return loss, xp.concatenate(rows)

    def _set(self, origin: Sequence[Any], change: Any) -> None:
        """Sets each parameter to its array in `origin` plus its part of the flat `change`."""
        start = 0
        for p, values in zip(self.parameters, origin, strict=True):
            p.array = values + change[start : start + p.size].reshape(p.shape)
            p.mark_written()
            start += p.size
        self._share()

    # ---- state

    def _forget(self) -> None:
        self._history = History()

    def state_dict(self) -> dict[str, Any]:
        """Returns the options and the `History`, as the state of parameter 0, as in PyTorch."""
        groups = states.saved_groups(self.param_groups)
        if not self._history.n_iter:
            return {"state": {}, "param_groups": groups}
        kept = mapped(_copied_to_host, vars(self._history))
        return {"state": {0: kept}, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads `state_dict`, also PyTorch's; raises ValueError if parameters differ."""
        if "param_groups" not in state:
            raise ValueError("LBFGS: load_state_dict takes a state_dict(), which has the history")
        states.check_groups(self.param_groups, state["param_groups"])
        kept = {name: value for row in state["state"].values() for name, value in row.items()}
        history, like = History(), self.parameters[0]
        size = sum(p.size for p in self.parameters)

        def loaded(value: Any) -> Any:
            array = np.asarray(value)
            if not array.ndim:
                return array.item()
            if array.shape != (size,):
                raise ValueError(
                    f"LBFGS: the state has an array of shape {array.shape}, and the parameters "
                    f"have {size:,} numbers: make the optimizer with the same parameters"
                )
            return backend.of(like._array).asarray(array.copy(), like.dtype)

        for name in vars(history).keys() & kept.keys():
            value = kept[name]
            is_list = isinstance(value, list | tuple)
            setattr(history, name, [*map(loaded, value)] if is_list else loaded(value))
        self._history = history
        self.param_groups[0].update(states.options_of(state["param_groups"][0]))


def _copied_to_host(value: Any) -> Any:
    """Returns a copy of an array on the host; a Python number for an array without axes."""
    if isinstance(value, int | float):
        return value
    array = backend.to_host(value)
    return array.copy() if array.ndim else array.item()
