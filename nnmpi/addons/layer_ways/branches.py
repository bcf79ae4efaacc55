"""Branches: modules that get the same input, and whose outputs are joined."""

from collections.abc import Iterable, Mapping
from typing import Any

from nnmpi.addons.layer_ways.branch_ops import JOINS, joined
from nnmpi.autograd import Tensor, apply
from nnmpi.nn.containers import ModuleDict
from nnmpi.nn.module import Module


class Branches(ModuleDict):
    """Named modules that all get the same input, and whose outputs are joined.

              ┌─► a ─┐
        x ────┼─► b ─┼─► sum, mean, concat, stack ──► y
              └─► c ─┘

    join  "sum" or "mean" of the outputs, "concat" along the axis `dim`, or "stack" along a new one

    Called with a dict, or with keyword arguments, each branch gets the input under its own name.
    With tensor parallelism whole branches go to different ranks.
    """

    def __init__(
        self,
        branches: Mapping[str, Module] | Iterable[tuple[str, Module]],
        join: str = "sum",
        dim: int = -1,
    ) -> None:
        if join not in JOINS:
            raise ValueError(f"Branches: join={join!r} must be one of {', '.join(JOINS)}")
        if dim == 0:
            raise ValueError("Branches: dim=0 is the axis of the samples: give another axis")
        self.join, self.dim = join, dim
        super().__init__(branches)
        if not len(self):
            raise ValueError("Branches: there is no branch: give a dict of modules")

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        given = self.given(inputs, named)
        outputs = [branch(*given[name]) for name, branch in self.items()]
        return apply(joined, *outputs, join=self.join, axis=self.dim)

    def given(
        self, inputs: tuple[Any, ...], named: Mapping[str, Any]
    ) -> dict[str, tuple[Any, ...]]:
        """Returns the arguments of each branch: `inputs`, or from a dict or keyword arguments its
        own."""
        if not named and len(inputs) == 1 and isinstance(inputs[0], Mapping):
            named = inputs[0]
        if not named:
            return dict.fromkeys(self, inputs)
        if {*named} != {*self}:
            raise ValueError(
                f"Branches {self.path}: inputs {', '.join(named)} for branches {', '.join(self)}: "
                "give one input for each branch, under its name, or one tensor for all"
            )
        return {name: (named[name],) for name in self}

    def extra_repr(self) -> str:
        dim = f", dim={self.dim}" * (self.join in ("concat", "stack"))
        return f"join={self.join!r}{dim}"
