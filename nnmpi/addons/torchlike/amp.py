"""PyTorch's `amp`: products in 16 bits, and losses that are scaled so that float16 can hold small
gradients.

    scaler = nnmpi.amp.GradScaler("cpu")
    for x, y in batches:
        optimizer.zero_grad()
        with nnmpi.autocast("cpu", dtype="float16"):
            loss = loss_function(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

bfloat16 needs no scaler. A Trainer with Config(dtype="float16") scales its losses itself.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

import numpy as np

from nnmpi.addons import finder
from nnmpi.addons.torchlike.autocasting import autocast as autocast
from nnmpi.addons.torchlike.autocasting import is_autocast_available as is_autocast_available
from nnmpi.addons.torchlike.autocasting import is_autocast_enabled
from nnmpi.arrays import backend
from nnmpi.arrays.backend import xp_of
from nnmpi.arrays.dtypes import is_float, named
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import op_types
from nnmpi.optim.optimizer import Optimizer
from nnmpi.options.notes import note

__path__ = [finder.ENTRY]


class GradScaler:
    """Multiplies losses by a scale, and divides the gradients by it before a step.

    If a gradient is not finite, `step` leaves the parameters as they are, and `update` multiplies
    the scale by `backoff_factor`. After `growth_interval` steps in a row with finite gradients,
    `update` multiplies it by `growth_factor`.

    device: "cuda" or "cpu"; for "cuda" on a machine without a GPU the scaler is not enabled
    enabled: False: the scale is 1, and `step` calls the step of the optimizer
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and device == "cuda" and backend.get("auto").is_host:
            note(
                'GradScaler("cuda") changes nothing on this machine, which has no GPU; '
                'GradScaler("cpu") scales losses'
            )
            enabled = False
        if growth_factor <= 1 or backoff_factor >= 1:
            raise ValueError(
                f"GradScaler: growth_factor={growth_factor} must be above 1, and "
                f"backoff_factor={backoff_factor} below 1"
            )
        self._enabled, self._scale = enabled, np.float32(init_scale)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._good_steps = growth_interval, 0
        self._found = dict[int, bool]()  # by optimizer: whether a gradient was not finite
        self._stepped = set[int]()

    def scale(self, outputs: Any) -> Any:
        """Returns a loss times the scale, or each tensor of a list, tuple or iterator."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * Tensor(xp_of(outputs._array).asarray(self._scale))
        if isinstance(outputs, list | tuple):
            return type(outputs)(map(self.scale, outputs))
        if isinstance(outputs, Iterator):
            return map(self.scale, outputs)
        raise ValueError(
            f"GradScaler.scale: a {type(outputs).__name__} is not a tensor: give a tensor, or a "
            "list, tuple or iterator of tensors"
        )

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, at most once in each
        step, for example before they are clipped. If it is not called, `step` divides them."""
        if not self._enabled:
            return
        self._check_not_stepped("unscale_", optimizer)
        if id(optimizer) in self._found:
            raise RuntimeError(
                "unscale_: the gradients of this optimizer are divided by the scale already; call "
                "it once between two calls of update()"
            )
        gradients = [p.grad_array for p in optimizer.parameters if p.grad_array is not None]
        if any(g.dtype == np.float16 for g in gradients):
            raise ValueError(
                "unscale_: gradients in float16 would overflow or vanish: keep parameters in "
                "float32, and compute within autocast"
            )
        is_finite = all(xp_of(g).isfinite(g).all() for g in gradients)
        inverse = float(np.float32(1 / np.float64(self._scale)))
        for g in gradients:
            g *= inverse
        self._found[id(optimizer)] = not is_finite

    def step(self, optimizer: Optimizer, *args: Any, **options: Any) -> Any:
        """Calls the step of the optimizer and returns its result, unless a gradient is not finite:
        then it returns None. Gradients are divided by the scale first."""
        if not self._enabled:
            return optimizer.step(*args, **options)
        if args or "closure" in options:
            raise RuntimeError(
                "GradScaler.step takes no closure, whose gradients it could not divide by the "
                "scale; call the closure before it"
            )
        self._check_not_stepped("step", optimizer)
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return None if self._found[id(optimizer)] else optimizer.step(**options)

    def _check_not_stepped(self, name: str, optimizer: Optimizer) -> None:
        if id(optimizer) in self._stepped:
            raise RuntimeError(
                f"{name}: this optimizer has made its step; call update() before the next one"
            )

    def update(self, new_scale: Any = None) -> None:
        """Adapts the scale to the last step's gradients, or sets it; called after `step`."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = np.float32(float(new_scale))
        elif not self._found:
            raise RuntimeError("update: no gradients were checked: call step() or unscale_() first")
        elif any(self._found.values()):
            self._scale, self._good_steps = self._scale * np.float32(self._backoff_factor), 0
        else:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                with np.errstate(over="ignore"):
                    grown = self._scale * np.float32(self._growth_factor)
                self._scale, self._good_steps = grown if np.isfinite(grown) else self._scale, 0
        self._found.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """The scale; 1 if the scaler is not enabled."""
        return float(self._scale) if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor of the scale after a step with a gradient that was not finite."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets the factor of the scale after a step with a gradient that was not finite."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of steps in a row with finite gradients after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets the number of steps in a row with finite gradients after which the scale grows."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """True if losses are scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale, the options and the number of good steps; {} if it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes a state that `state_dict` has returned, also one of PyTorch's GradScaler."""
        if not self._enabled:
            return
        if not state:
            raise RuntimeError(
                "load_state_dict: the state is empty, as that of a scaler that is not enabled"
            )
        self._scale, self._good_steps = np.float32(state["scale"]), int(state["_growth_tracker"])
        self._growth_factor = float(state["growth_factor"])
        self._backoff_factor = float(state["backoff_factor"])
        self._growth_interval = int(state["growth_interval"])


# ---- autograd.Function within autocast


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: Any = None
) -> Any:
    """Decorates `forward` of an autograd.Function, so that `custom_bwd` can compute in the same
    types.

    With `cast_inputs`, a dtype, and within `autocast` for `device_type`, 16-bit and float32 tensors
    among the arguments, also in lists and dictionaries, are converted to this dtype, and `forward`
    runs without autocast. Without `fwd` the call returns the decorator.
    """
    if fwd is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def forward(ctx: Any, *args: Any, **options: Any) -> Any:
        ctx.op_types = op_types.get()
        if cast_inputs is None or not is_autocast_enabled(device_type):
            return fwd(ctx, *args, **options)
        with autocast(device_type, enabled=False):
            ctx.op_types = op_types.get()
            cast = partial(_cast, dtype=cast_inputs, device_type=device_type)
            return fwd(ctx, *map(cast, args), **{k: cast(v) for k, v in options.items()})

    return forward


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Decorates `backward` of an autograd.Function whose `forward` has the decorator `custom_fwd`:
    its ops compute in the types that autocast had chosen for `forward`. Without `bwd` the call
    returns the decorator."""
    if bwd is None:
        return partial(custom_bwd, device_type=device_type)

    @wraps(bwd)
    def backward(ctx: Any, *gradients: Any) -> Any:
        token = op_types.set(ctx.op_types)
        try:
            return bwd(ctx, *gradients)
        finally:
            op_types.reset(token)

    return backward


def _cast(value: Any, dtype: Any, device_type: str) -> Any:
    """Returns a 16-bit or float32 tensor on this type of device in another type, a list, tuple or
    dictionary with such tensors converted, and all else unchanged."""
    if isinstance(value, list | tuple):
        return type(value)(_cast(v, dtype, device_type) for v in value)
    if isinstance(value, dict):
        return {key: _cast(v, dtype, device_type) for key, v in value.items()}
    if not isinstance(value, Tensor) or not is_float(value.dtype) or value.dtype == np.float64:
        return value
    is_here = backend.of(value._array).type == device_type
    return value.to(named(dtype) if isinstance(dtype, str) else dtype) if is_here else value
