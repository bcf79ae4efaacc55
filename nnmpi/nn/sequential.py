"""Sequential, which runs some neighbouring layers as one op.

Rules:

- `_steps` caches the function of each layer or fused group. An assignment clears it; code that
  records a model, or copies its modules, calls `forget_steps`. Hooks are looked up in each call.
- A fused op gives the same values as its layers one by one. A layer whose `forward` may differ (a
  subclass, a recorder, hooks, parameters that share memory in turn) runs alone.
- Between layers `progress` is called, which moves messages during a forward pass.
"""

from collections.abc import Callable
from typing import Any, TypeGuard

from nnmpi.arrays.kernels import progress_hook
from nnmpi.autograd import Tensor
from nnmpi.nn.containers import NumberedLayers
from nnmpi.nn.fusion import FusedStep, steps_of
from nnmpi.nn.module import Module
from nnmpi.nn.passes import current_pass


class Sequential(NumberedLayers):
    """Layers one after the other; the first may take several inputs. A dictionary gives them names.
    Some neighbours run as one op (`fusion.FUSED`), with the same values and gradients."""

    _steps: tuple[Callable[..., Tensor], list[FusedStep]] | None = None
    """The functions to call: the first takes the arguments of the Sequential."""

    def __init__(self, *layers: Any) -> None:
        if len(layers) != 1 or not isinstance(named := layers[0], dict):
            super().__init__(layers)
            return
        super().__init__()
        for name, layer in named.items():
            self.add_module(name, layer)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        object.__setattr__(self, "_steps", None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        object.__setattr__(self, "_steps", None)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_steps": None}

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        steps = self._steps
        if steps is None:
            current, layers = current_pass.get(), list(self)
            # while a graph is recorded no layers are fused: each is a node
            one_by_one = current is not None and current.around is not None
            first, *others = [*(layers if one_by_one else steps_of(layers))] or [lambda x: x]
            steps = first, others
            object.__setattr__(self, "_steps", steps)
        progress = progress_hook.get()
        x = steps[0](*inputs, **named)
        progress()
        for step in steps[1]:
            x = step(x)
            progress()
        return x

    def _slice(self, places: slice) -> Module:
        return Sequential(dict([*self._modules.items()][places]))


def only_runs_layers(module: Module) -> TypeGuard[Sequential]:
    return isinstance(module, Sequential) and type(module).forward is Sequential.forward


def forget_steps(model: Module) -> None:
    """Clears cached functions of all Sequentials, since layers have changed."""
    for m in model.modules():
        if isinstance(m, Sequential):
            object.__setattr__(m, "_steps", None)
