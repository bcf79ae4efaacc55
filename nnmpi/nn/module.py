"""Module: a tree of layers with parameters and buffers, under PyTorch's names.

Rules:

- A module knows nothing of ranks. Whatever a forward pass needs to know about other ranks or about
  the step comes in the Pass (`passes.py`); a Store has the memory of the values.
- The order of the registries is the order of assignment. State dicts, files and the digest have the
  same order, so nothing may change it.
- Initial values derive from the path of a parameter. A module that gets another path before its
  weights are drawn gets other weights, so wrappers (stages, parts of layers) keep the paths.
- An attribute that is not part of the model is set by `object.__setattr__`: `Module.__setattr__`
  looks for parameters, and makes a Sequential look up its fused steps again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self

from nnmpi.autograd import Tensor
from nnmpi.nn.hooks import Hooked
from nnmpi.nn.parameter import Parameter, clear_gradients
from nnmpi.nn.passes import LOCAL, UNTRACKED, Pass, combined_buffers, current_pass
from nnmpi.nn.place import Place, StateArray
from nnmpi.nn.registries import Registries
from nnmpi.nn.seeding import SeedState, refuse_late_seed
from nnmpi.nn.state import LoadedKeys, load_into


class Module(Hooked, Registries):
    """A layer or a whole model: subclass it, assign parameters and modules, define `forward`.

    All weights and dropout masks of a model are drawn from the `seed` of its root and their path in
    the model. A weight that is read or changed before its layer is assigned to a model is drawn at
    that moment: two equal blocks whose weights were read this early start with equal weights,
    unless each sets its own `seed` first.
    """

    training: bool = True
    _before_user_call: Callable[[], None] | None = None
    """Called before the user calls a model whose layers need other ranks."""
    _modules: dict[str, Module]

    def __init__(self) -> None:
        """Takes no arguments, so that options which a subclass does not declare are refused."""

    # ---- running

    def forward(self, *args: Any, **options: Any) -> Any:
        """Computes the output; a subclass defines it."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **options: Any) -> Any:
        current = current_pass.get()
        forward = self.forward_with_hooks if self._hooks else self.forward
        if current is not None:
            if current.around is not None:
                forward = partial(current.around, self, forward)
            if self.training and not current.counted:
                # not reset behind this module: the outermost call reads it, and counts the pass
                current_pass.set(current._replace(counted=True))
            if self._combine and self.training and current.batch_stats is not UNTRACKED:
                with combined_buffers(self, self._combine, current):
                    return forward(*args, **options)
            return forward(*args, **options)
        if self._before_user_call is not None:
            self._before_user_call()
        token = current_pass.set(Pass(self.passes, None, LOCAL, self.training))
        try:
            return forward(*args, **options)
        finally:
            if self.training or current_pass.get().counted:  # type: ignore[union-attr]
                object.__setattr__(self, "passes", self.passes + 1)
            current_pass.reset(token)

    def train(self, mode: bool = True) -> Module:
        """Switches to training mode: Dropout is active, BatchNorm uses the batch statistics."""
        for m in self.modules():
            object.__setattr__(m, "training", mode)
        return self

    def eval(self) -> Module:
        """Switches to evaluation: no Dropout, BatchNorm by running statistics."""
        return self.train(False)

    # ---- the tree

    @property
    def root(self) -> Module:
        """The outermost module that contains this one; itself if no module does."""
        *_, m = self._upwards()
        return m

    @property
    def path(self) -> str:
        """The path from the root: "" for the root, "2.norm" for child `norm` of child "2"."""
        names = [m._name for m in self._upwards() if m._parent is not None]
        return ".".join(reversed(names))

    @property
    def seed(self) -> int:
        """The seed of weights and masks of a root: 0, or that of `nnmpi.seeded`."""
        return self._seed_state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        refuse_late_seed(type(self).__name__, seed, self.named_parameters())
        object.__setattr__(self, "_seed_state", SeedState(seed))

    @property
    def _number(self) -> int:
        """How many modules were made before this one if it is a layer that stands alone; else 0.

        Initial weights follow from the seed, the path of the parameter and this number: so layers
        that stand alone have different weights, although their paths are equal. It is 0 for a
        module with children, for a child, and after `seed` was set.
        """
        alone = self._parent is None and not self._modules
        return self._seed_state.number if alone else 0

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yields the name and module of each child, each module once, under its first name."""
        first = {m: name for name, m in reversed(self._modules.items())}
        return ((name, m) for name, m in self._modules.items() if first[m] == name)

    def children(self) -> Iterator[Module]:
        """Yields the modules that were assigned to this one, each once."""
        return (m for _, m in self.named_children())

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Calls `fn` with each module below this one, children first, then with this one."""
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yields name and module of this and all below; one in two places comes twice."""
        yield prefix, self
        for name, m in self._modules.items():
            yield from m.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """Yields this module and all modules below it."""
        return (m for _, m in self.named_modules())

    def _entries(
        self, *registries: str, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Module, str]]:
        """Yields (full name, module, attribute name) of each entry of `registries`, and below."""
        for path, m in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name in (name for registry in registries for name in getattr(m, registry)):
                yield f"{path}.{name}" if path else name, m, name

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yields name and value of each parameter once, under its first name."""
        return self._each_once("_parameters", prefix, recurse)

    def _each_once(self, registry: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        """Yields name and value of each entry of a registry once, without None."""
        first: dict[Any, str] = {}
        for full, m, name in self._entries(registry, prefix=prefix, recurse=recurse):
            first.setdefault(getattr(m, name), full)
        return ((full, t) for t, full in first.items() if t is not None)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yields each parameter once; with `recurse=False` only this module's own."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yields name and tensor of each buffer once, under its first name."""
        return self._each_once("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yields each buffer once; with `recurse=False` only the buffers of this module itself."""
        return (t for _, t in self.named_buffers(recurse=recurse))

    def tensors(self) -> Iterator[tuple[Place, Tensor]]:
        """Yields (place, parameter or buffer) for each entry of the state dict, in its order. The
        place has the name of the entry, also if two names share one tensor."""
        for full, m, name in self._entries("_parameters", "_buffers"):
            value = getattr(m, name)
            place = value.place if isinstance(value, Parameter) else m._buffers[name]
            if value is not None and place is not False:
                yield (place or Place.of_whole("", value.shape))._replace(path=full), value

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freezes all parameters, or makes them trainable again."""
        for p in self.parameters():
            p._requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears all gradients: sets them to None, or fills the existing ones with 0."""
        clear_gradients(self.parameters(), set_to_none)

    # ---- saving

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all parameters and buffers as tensors in the memory of the model, without
        gradients, under PyTorch's names.

        As in PyTorch, a dict that a program keeps has the new values after a training step, and a
        write in place to its tensors changes the model: `copy.deepcopy(model.state_dict())` is a
        snapshot. A tensor of a parameter looks up the values at each use, also after an optimizer
        or a Trainer has moved them. Where a rank has only shards (ZeRO 2 and 3), this raises
        ValueError, and so does a later use of the tensors, outside of
        `trainer.gathered_parameters()`.
        """
        return {place.path: _shared(value) for place, value in self.tensors()}

    def state_arrays(self) -> Iterable[StateArray]:
        """Returns other arrays that a step changes, to be saved too. Subclasses define it."""
        return ()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Copies whole tensors into the model if all names and shapes fit, and returns the keys
        that do not match. Without `strict`, names may differ: tensors that are not in the state
        keep their values."""
        return load_into(list(self.tensors()), state, strict)

    def __repr__(self) -> str:
        lines = [f"({name}): {m!r}".replace("\n", "\n  ") for name, m in self._modules.items()]
        inner = "".join(f"\n  {line}" for line in lines)
        return f"{type(self).__name__}({self.extra_repr()}{inner}{chr(10) if lines else ''})"

    def extra_repr(self) -> str:
        """Returns the options that `repr` shows in parentheses."""
        return ""


def _shared(value: Tensor) -> Tensor:
    """Returns a tensor without gradient in the memory of a parameter or buffer."""
    if not isinstance(value, Parameter):
        return value.detach()
    _ = value._array  # draws initial values; raises an error if this rank cannot read the values
    return value.data
