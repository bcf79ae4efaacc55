"""Hooks: functions that are called before or after the forward pass of a module.

A module with hooks always runs whole, with its hooks: it is not fused with other layers, is one
node of a recorded graph, and is not split between ranks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Self


class Hook(NamedTuple):
    """A hook, called with (module, args), keyword arguments if `with_kwargs`, and the output."""

    function: Callable[..., Any]
    is_before: bool
    with_kwargs: bool


class HookHandle:
    """Removes a hook by `remove()`, or at the end of a `with` block."""

    def __init__(self, module: "Hooked", hook: Hook) -> None:
        self._module, self._hook = module, hook

    def remove(self) -> None:
        """Removes the hook; a second call does nothing."""
        others = tuple(hook for hook in self._module._hooks if hook is not self._hook)
        object.__setattr__(self._module, "_hooks", others)
        self._module.note_change()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def refused_hook(name: str) -> Callable[..., NoReturn]:
    """Returns a method that raises NotImplementedError: a hook that nnmpi lacks."""

    def method(self: Any, *args: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name}: nnmpi has forward hooks of modules, and no others; write what the hook does "
            'into forward, or around the call (docs/modules.md, "What stays out")'
        )

    return method


class Hooked:
    """The base class of Module that registers hooks, and calls them before and after `forward`."""

    _hooks: tuple[Hook, ...]
    forward: Callable[..., Any]
    note_change: Callable[[], None]

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Registers `hook` to be called as hook(module, args, output) after each forward pass; a
        result other than None replaces the output. `prepend` calls it before the hooks that are
        registered already; `with_kwargs` passes the keyword arguments too, as the third
        argument."""
        return self._register(Hook(hook, False, with_kwargs), prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Registers `hook` to be called as hook(module, args) before each forward pass; a result
        other than None replaces the arguments. Options are those of `register_forward_hook`."""
        return self._register(Hook(hook, True, with_kwargs), prepend)

    register_full_backward_hook = refused_hook("Module.register_full_backward_hook")

    def _register(self, hook: Hook, prepend: bool) -> HookHandle:
        hooks = (hook, *self._hooks) if prepend else (*self._hooks, hook)
        object.__setattr__(self, "_hooks", hooks)
        self.note_change()
        return HookHandle(self, hook)

    def forward_with_hooks(self, *args: Any, **options: Any) -> Any:
        """Calls the hooks before `forward`, `forward` and the hooks after it."""
        hooks = self._hooks
        for function, _, with_kwargs in (hook for hook in hooks if hook.is_before):
            new = function(self, args, options) if with_kwargs else function(self, args)
            if new is not None and with_kwargs:
                args, options = new
            elif new is not None:
                args = new if isinstance(new, tuple) else (new,)
        y = self.forward(*args, **options)
        for function, _, with_kwargs in (hook for hook in hooks if not hook.is_before):
            new = function(self, args, options, y) if with_kwargs else function(self, args, y)
            y = y if new is None else new
        return y
