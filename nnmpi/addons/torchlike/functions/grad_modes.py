"""PyTorch's functions that switch the recording of ops on and off, except `no_grad`."""

from contextlib import ContextDecorator
from contextvars import Token
from typing import Any

from nnmpi.autograd.recording import OpRecorder, no_grad, recording


def is_grad_enabled() -> bool:
    """True if ops are recorded, so that their results can have gradients."""
    return bool(recording.get())


class set_grad_enabled(ContextDecorator):  # noqa: N801 (PyTorch's name)
    """Switches the recording of ops on or off, from the call on or in a `with` block."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self._token: Token[bool | OpRecorder] | None = _set(self.mode)

    def __enter__(self) -> None:
        if self._token is None:
            self._token = _set(self.mode)

    def __exit__(self, *exc: object) -> None:
        assert self._token is not None
        recording.reset(self._token)
        self._token = None

    def _recreate_cm(self) -> "set_grad_enabled":
        return type(self)(self.mode)

    def __call__(self, function: Any) -> Any:
        self.__exit__()  # a decorator switches nothing until the function is called
        return super().__call__(function)


def _set(mode: bool) -> Token[bool | OpRecorder]:
    """Sets whether ops are recorded from now on, and returns the token that undoes it. While a
    model is traced, its recorder keeps receiving ops if `mode` is True."""
    record = recording.get()
    if not mode and not isinstance(record, bool):
        record.enter("no_grad")
    return recording.set((record or True) if mode else False)


class enable_grad(no_grad):  # noqa: N801
    """Switches the recording of ops on within `no_grad`: `with enable_grad():` or a decorator."""

    def __enter__(self) -> None:
        self._tokens.append(_set(True))


class inference_mode(no_grad):  # noqa: N801
    """Switches the recording of ops off, as `no_grad` does; with mode=False it changes nothing."""

    def __new__(cls, mode: Any = True) -> Any:
        return super().__new__(cls, mode if callable(mode) else None)

    def __init__(self, mode: Any = True) -> None:
        super().__init__()
        self.mode = bool(mode)

    def __enter__(self) -> None:
        if self.mode:
            super().__enter__()
        else:
            self._tokens.append(recording.set(recording.get()))

    def _recreate_cm(self) -> "inference_mode":
        made: inference_mode = type(self)(self.mode)
        return made
