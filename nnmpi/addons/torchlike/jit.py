"""PyTorch's `jit`: decorators that change nothing, since models run as written."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nnmpi.addons import finder


def ignore(drop: Any = False, **options: Any) -> Any:
    """Returns the decorated function: @ignore, or @ignore(drop=True)."""
    return drop if callable(drop) else unused


def unused(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function."""
    return fn


export = interface = script_if_tracing = unused


def script(obj: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """Returns the function or the module: it runs as it is written."""
    return obj


def is_scripting() -> bool:
    """Returns False."""
    return False


is_tracing = is_scripting

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.jit", "jit")
