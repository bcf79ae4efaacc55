"""Lets an optimizer update plain tensors that require a gradient: in the optimizer's groups, a
Parameter takes the place of each.

    image = nnmpi.rand(1, 3, 8, 8, requires_grad=True)
    opt = optim.Adam([image])
"""

from collections.abc import Iterable
from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import tick
from nnmpi.nn.parameter import Parameter


class LeafParameter(Parameter):
    """The parameter that takes the place of a plain tensor in the groups of an optimizer: `grad` is
    that of the tensor, `has_grad` and `grad_memory` belong to a copy of it (see `Leaf.collect`)."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        super().__init__(tensor._array)  # copied

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the plain tensor whose place this parameter takes, or None."""
        return self.tensor.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self.tensor.grad = value

    @property
    def grad_array(self) -> Array | None:
        """The gradient of the plain tensor that this parameter stands for, or None."""
        return self.tensor.grad_array

    @grad_array.setter
    def grad_array(self, value: Array | None) -> None:
        self.tensor.grad_array = value


class Leaf:
    """A plain tensor in an optimizer, with the parameter that takes its place there. The tensor's
    values are in the memory of the parameter; its gradient is copied there when a step begins."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.parameter = tensor, LeafParameter(tensor)
        self._given: Any = None  # the memory of the parameter, when the tensor has got it

    def collect(self) -> None:
        """Copies the tensor's gradient to the parameter, and also its values if the tensor has
        other memory: a program may have written to that, or replaced it by `t.data = x`."""
        if self.tensor._array is not self._given:
            self.parameter.array = self.tensor._array
        grad = self.tensor.grad_array
        self.parameter.has_grad = grad is not None
        if grad is not None:
            self.parameter.grad_memory[...] = grad

    def share(self) -> None:
        """Makes the tensor use the parameter's memory, or copies if others share the tensor's."""
        if self.tensor.storage.sharing is None:
            self._given = self.tensor._array = self.parameter._array
        else:
            self.tensor._array[...] = self.parameter._array
        self.tensor.storage.written = tick()

    def clear(self, set_to_none: bool) -> None:
        """Clears the tensor's gradient: sets it to None with `set_to_none`, else to zeros."""
        if set_to_none:
            self.tensor.grad_array = None
        elif self.tensor.grad_array is not None:
            self.tensor.grad_array[...] = 0


def adopted(groups: Iterable[dict[str, Any]]) -> list[Leaf]:
    """Replaces each plain tensor in the groups by a parameter, and returns a Leaf for each; raises
    ValueError for what is no tensor, not a leaf, or requires no gradient."""
    leaves = []
    for group in groups:
        for i, t in enumerate(group["params"]):
            if isinstance(t, Parameter):
                continue
            if not isinstance(t, Tensor):
                raise ValueError(
                    f"an optimizer needs nn.Parameter objects, as from model.parameters(); "
                    f"entry {i} of this list is a {type(t).__name__}"
                )
            if t.node is not None or not t._requires_grad:
                why = "is a result" if t.node is not None else "requires no gradient"
                raise ValueError(
                    f"an optimizer cannot update the tensor of shape {t.shape} in its list, which "
                    f"{why}: give it t.detach().requires_grad_(), and compute with that"
                )
            leaves.append(Leaf(t))
            group["params"][i] = leaves[-1].parameter
    return leaves
