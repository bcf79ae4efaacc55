"""blank(model): a model of the same modules whose parameters have no values."""

from copy import copy
from typing import Any

from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.sequential import forget_steps


def blank(model: Module) -> Module:
    """The same tree of modules, with parameters that are not drawn; buffers and other attributes
    are shared with the model."""
    twins: dict[Any, Any] = {m: copy(m) for m in dict.fromkeys(model.modules())}
    twins |= {p: _undrawn(p) for p in dict.fromkeys(model.parameters())}
    for part, twin in twins.items():
        parent = twins.get(part._parent)
        object.__setattr__(twin, "_parent", parent)
        object.__setattr__(twin, "_name", part._name if parent is not None else "")
        if isinstance(twin, Module):
            registries: tuple[dict[str, Any], ...] = (twin._modules, twin._parameters)
            for registry in registries:
                registry.update((name, twins.get(child)) for name, child in registry.items())
                vars(twin).update(registry)
    root: Module = twins[model]
    forget_steps(root)
    return root


def _undrawn(p: Parameter) -> Parameter:
    twin = Parameter.drawn(p._place, p.init, p.memory_axes)
    twin.requires_grad, twin.room = p.requires_grad, p.room
    return twin
