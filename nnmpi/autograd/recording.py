"""Whether operations are recorded, so that gradients can be computed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Any, Protocol, Self


class OpRecorder(Protocol):
    """Is told what a model does that is traced."""

    def __call__(
        self, op: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], y: Any
    ) -> None:
        """Called with each op, its arguments, its options and its result."""

    def enter_no_grad(self) -> None:
        """Called before no_grad, within which it is told nothing."""


recording: ContextVar[bool | OpRecorder] = ContextVar("nnmpi_recording", default=True)
"""Whether ops record nodes; a recorder, which is called beside that, where a model is traced. A
context variable, since ranks may be threads."""


class no_grad(ContextDecorator):
    """Within it ops record nothing: `with no_grad():`, `@no_grad()` or `@no_grad`."""

    def __new__(cls, function: Any = None) -> Any:
        if function is None:
            return super().__new__(cls)
        if not callable(function):
            raise TypeError(f"no_grad({function!r:.40}): write `with nnmpi.no_grad():`")
        return cls()(function)

    def __init__(self) -> None:
        self._tokens: list[Token[bool | OpRecorder]] = []

    def __enter__(self) -> None:
        record = recording.get()
        if not isinstance(record, bool):
            record.enter_no_grad()
        self._tokens.append(recording.set(False))

    def __exit__(self, *exc: object) -> None:
        recording.reset(self._tokens.pop())

    def _recreate_cm(self) -> Self:
        """A new one for each call of a decorated function: many threads may call it at once."""
        return type(self)()
